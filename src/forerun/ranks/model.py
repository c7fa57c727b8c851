"""The model that is spread over ranks, as rank 0 sees it: a `LanguageModel` like any other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import finalize

from forerun.base.errors import UnsupportedError, explain
from forerun.models.base import (
    Kept,
    Parents,
    check_copy,
    check_layers,
    check_score,
    check_truncate,
)
from forerun.ranks.ranks import Ranks

if TYPE_CHECKING:
    from forerun.models.huggingface import HuggingFaceModel


class SpreadRows:
    """Rows on all ranks; each rank stores the keys and values of its own heads."""

    def __init__(self, number: int, shard: Any) -> None:
        self.number = number
        self.shard = shard  # this rank's rows
        self.lengths: list[int] = shard.lengths  # one list, which is changed in place
        self.shown: list[int] = getattr(shard, "shown", shard.lengths)


class Outline:
    """The parts of the transformers model that others may read.  Its weights are on all ranks."""

    def __init__(self, shard: Any, ranks: Ranks) -> None:
        self.config = shard.config
        self.generation_config = shard.generation_config
        self.device = shard.device
        self.dtype = shard.dtype
        self.weight: Any = None  # the whole embedding (V, H), after it has been asked for
        self._shard = shard
        self._ranks = ranks

    def get_input_embeddings(self) -> Outline:
        """This object, with the whole embedding in `weight`, for drafters that read it."""
        if self.weight is None:
            with self._ranks.together("embedding", ["embedding", None]):
                self.weight = whole_embedding(self._shard)
        return self


class TensorParallelModel:
    """A transformers model over several ranks, driven from rank 0.

    Every call that computes or changes rows is made on all ranks, in one order.  Arguments are
    checked before a call is sent to the other ranks.
    """

    why_not_lean = "its weights are spread over ranks"

    def __init__(self, shard: HuggingFaceModel, ranks: Ranks) -> None:
        self.name = shard.name
        self.tokenizer = shard.tokenizer
        self.vocab_size = shard.vocab_size
        self.max_context = shard.max_context
        self.hidden_size = shard.hidden_size
        self.num_layers = shard.num_layers
        self.is_routed = shard.is_routed
        self.identity: Any = shard.identity
        self.model = Outline(shard.model, ranks)
        self.ranks = ranks
        self._shard = shard
        self._numbers = count()
        self._dropped: deque[int] = deque()  # numbers of states that have been freed here
        self.close = finalize(self, ranks.close)  # ends the ranks; at exit at the latest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.pass_name})"

    def __enter__(self) -> TensorParallelModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pass_name(self) -> str:
        """The pass of one rank and the number of ranks, in words."""
        return f"{self._shard.pass_name}, {self.ranks.num_ranks} ranks"

    @property
    def compute_dtype(self) -> str:
        return self._shard.compute_dtype

    @property
    def fingerprint(self) -> str:
        """A digest of the weights of all ranks."""
        with self.ranks.together("digest", ["digest", None]):
            parts = {0: digest(self._shard.model)}
            while len(parts) < self.ranks.num_ranks:
                reply = self.ranks.reply()
                parts[reply["rank"]] = reply["digest"]
        return f"{self.ranks.num_ranks} ranks: {[parts[rank] for rank in sorted(parts)]}"

    @property
    def scores_trees(self) -> bool:
        return self._shard.scores_trees  # known since the model was loaded

    @property
    def decides_on_device(self) -> bool:
        """Whether rank 0 can judge logits on the device that has computed them."""
        return self._shard.decides_on_device

    def start(self, num_rows: int, capacity: int = 0) -> SpreadRows:
        number = next(self._numbers)
        with self.ranks.together("start", *self._drops(), ["start", number, num_rows, capacity]):
            state = SpreadRows(number, start(self._shard, num_rows, capacity))
        finalize(state, self._dropped.append, number)
        return state

    def score(
        self,
        state: SpreadRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        if parents is not None and not self.scores_trees:
            wrong = "This model cannot score trees, because its cache or its positions forbid it."
            raise UnsupportedError(explain(wrong, self.name, "Draft chains: leave out `parents`."))
        return self._call("score", state, rows, tokens, num_logits, parents)

    def commit(self, state: SpreadRows, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        self._call("commit", state, rows, kept)

    def release(self, state: SpreadRows, row: int) -> None:
        self._call("release", state, row)

    def copy_prefix(self, state: SpreadRows, source: int, row: int, length: int) -> int:
        check_copy(state.lengths, source, row, length)
        return int(self._call("copy_prefix", state, source, row, length))

    def truncate(self, state: SpreadRows, row: int, length: int) -> int:
        check_truncate(state.lengths, row, length)
        return int(self._call("truncate", state, row, length))

    def watch(self, state: SpreadRows, layers: Sequence[int]) -> None:
        check_layers(layers, self.num_layers)
        self._call("watch", state, layers)

    def watched(self, state: SpreadRows, row: int) -> Any:
        """Hidden states (N, layers * hidden) of the tokens that the last commit added to a row."""
        return self._shard.watched(state.shard, row)

    def fresh(self, text: Sequence[int]) -> Any:
        """Logits (V,) after a text, computed from scratch by all ranks."""
        with self.ranks.together("fresh", ["fresh", None, text]):
            return self._shard.fresh(text)

    def _call(self, verb: str, state: SpreadRows, *arguments: Any) -> Any:
        """Call a method of the model on all ranks."""
        message = [verb, state.number, *arguments]
        with self.ranks.together(verb, *self._drops(), message):
            return getattr(self._shard, verb)(state.shard, *arguments)

    def _drops(self) -> list[Any]:
        """Messages that let the other ranks free states that have been freed here."""
        return [["drop", self._dropped.popleft()] for _ in range(len(self._dropped))]


def whole_embedding(shard: Any) -> Any:
    """The embedding (V, H), put together from the parts of all ranks."""
    weight = shard.get_input_embeddings().weight.detach()
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def start(shard: HuggingFaceModel, num_rows: int, capacity: int) -> Any:
    """Make the rows of one rank.  Their passes are not captured as CUDA graphs, because collectives
    in graphs have not been tested."""
    rows = shard.start(num_rows, capacity)
    if hasattr(rows, "captured"):
        rows.captured = None
    return rows


def digest(model: Any) -> str:
    """A digest of the weights that one rank has; equal for equal shards of equal weights."""
    import torch

    total = blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        local = value.to_local() if hasattr(value, "to_local") else value
        flat = local.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        total.update(f"{name} {tuple(local.shape)} {local.dtype}\n".encode())
        total.update(flat.numpy().data)
    return total.hexdigest()
