"""Each prompt is read once: the cells of a sweep all begin with the same ones.

On a CPU a long prompt takes as long to read as its answer takes to write, and every cell would read
it again to come to the same keys, values and hidden states.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from typing import Any

from forerun.errors import UnsupportedError, explain
from forerun.models.base import LanguageModel, Parents, check_score

MOST_BYTES = 2 * 2**30
"""What may be remembered; the prompts that were not needed for longest are forgotten first."""

Key = tuple[tuple[int, ...], tuple[int, ...]]


class ReadOnce:
    """A memory of prompts, and `target`: the model, scoring with the help of it.

    The target is a copy that shares the weights and not something wrapped around the model, because
    drafters ask what kind of model they draft for.

    A row that is empty and fed a known prompt is put into the state that reading all but the
    prompt's last token would have left.  That token is fed as ever, together with the draft, so a
    first round has logits of its own and costs what later rounds cost.
    """

    def __init__(self, model: LanguageModel, most_bytes: int = MOST_BYTES) -> None:
        if not hasattr(model.start(1, 1), "copy_out"):
            wrong = "This target cannot keep what it has read, so prompts are read in every run."
            cure = (
                "Leave out --read-prompts-once (read_prompts_once), or load a Llama-family model "
                'in float32 on the CPU, where the lean pass can: pip install "forerun[cpu]".'
            )
            raise UnsupportedError(explain(wrong, type(model).__name__, cure))
        self.num_recalled = 0  # prompts that were not read
        self.num_bytes = 0
        self._most_bytes = most_bytes
        self._known: OrderedDict[Key, Any] = OrderedDict()  # the one needed last comes last
        self._model = model
        self.target: Any = copy(model)
        self.target.score = self._score  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._known)

    def _score(
        self,
        state: Any,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self._model.vocab_size)
        unknown: dict[int, Key] = {}
        for row, fed, count in zip(rows, tokens, num_logits, strict=True):
            read = tuple(fed[: len(fed) - count])  # the prompt, but for its last token
            if read and state.lengths[row] == 0:
                key = read, state.layers
                if key in self._known:
                    self._known.move_to_end(key)
                    state.copy_in(row, self._known[key])
                    self.num_recalled += 1
                else:
                    unknown[row] = key
        logits = self._model.score(state, rows, tokens, num_logits, parents)
        for row, key in unknown.items():
            self._remember(key, state.copy_out(row, len(key[0])))
        return logits

    def _remember(self, key: Key, begun: Any) -> None:
        if key in self._known:  # two rows of a batch began alike
            return
        self._known[key] = begun
        self.num_bytes += begun.num_bytes
        while self.num_bytes > self._most_bytes:
            _, oldest = self._known.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
