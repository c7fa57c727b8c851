"""The first layers of a model with the model's own head, on the rows of the whole model.

Nothing is copied: the layers are shared, and the cache of the whole model already holds their keys
and values for the stored text. Keys and values of draft tokens are written past a row's length,
where the whole model's next pass overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol

import torch

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.models.base import Kept, Parents, State, check_score


class SharedRows(State, Protocol):
    """Rows shared by two passes; after one scores, the other must drop its uncommitted scores."""

    def score(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any: ...

    def forget(self, row: int) -> None:
        """Drop everything scored since the last commit."""
        ...


class FirstLayers:
    """The first layers of a model as a `LanguageModel`, on the rows of the whole model.

    Its commits only forget scores: the rows grow when the whole model commits.
    """

    def __init__(
        self, whole: Any, num_layers: int, rows_of_whole: SharedRows, own_rows: SharedRows
    ) -> None:
        self.name = f"first {num_layers} of {whole.num_layers} layers of {whole.name}"
        self.tokenizer = whole.tokenizer
        self.vocab_size: int = whole.vocab_size
        self.max_context: int | None = whole.max_context
        self._whole = whole
        self._rows_of_whole = rows_of_whole
        self._own_rows = own_rows

    @property
    def scores_trees(self) -> bool:
        """Whether the whole model scores trees; it may need a trial, so it is asked only on use."""
        return bool(self._whole.scores_trees)

    def start(self, num_rows: int, capacity: int = 0) -> SharedRows:
        return self._own_rows

    def score(
        self,
        state: SharedRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        for row in rows:
            self._rows_of_whole.forget(row)  # this pass writes over what it scored last
        with torch.inference_mode():
            return torch.as_tensor(state.score(rows, tokens, num_logits, parents))

    def commit(self, state: SharedRows, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        for row in rows:
            state.forget(row)

    def release(self, state: SharedRows, row: int) -> None:
        state.forget(row)


def check_depth(name: str, total: int, num_layers: int) -> None:
    """Raise InputError unless 1 <= num_layers <= total."""
    if not 1 <= num_layers <= total:
        received = f"the first {num_layers}"
        raise InputError(explain(f"{name} has {total} layers.", received, f"Use 1 to {total}."))


def truncated(model: Any, num_layers: int) -> Any:
    """A transformers model that shares modules and weights but has only its first layers."""
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = [
        name.split(".")
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == total
    ]
    if len(lists) != 1:
        wrong = f"The {total} layers of this model are not one list of modules."
        cure = "Use another drafter: its first layers cannot be told apart."
        raise UnsupportedError(explain(wrong, type(model).__name__, cure))
    return _shortened(model, lists[0], num_layers)


def _shortened(module: Any, path: list[str], num_layers: int) -> Any:
    """A copy of a module in which the list of layers at `path` is cut to the first ones."""
    if not path:
        return module[:num_layers]
    if "forward" in vars(module):  # bound to the whole model, which would run instead
        wrong = "The forward of a module was replaced, as accelerate does to spread a model out."
        cure = "Load the model onto one device, or use another drafter."
        raise UnsupportedError(explain(wrong, type(module).__name__, cure))
    short = copy(module)
    inner = _shortened(getattr(module, path[0]), path[1:], num_layers)
    short._modules = {**module._modules, path[0]: inner}
    return short
