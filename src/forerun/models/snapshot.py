"""The snapshot strategy, for recurrent and hybrid models, whose state cannot be cropped.

Each row has a cache of its own, made and updated by the model itself. The state is saved before
every pass; if some of a draft is refused it goes back to the last save that saw nothing refused,
and the kept tokens after it are pending again: they are replayed inside the next pass, not in one
of their own. Rows are scored one by one, since padding would be absorbed into the state.

Some recurrent layers (Mamba's, in transformers 5.22) continue from a state correctly by one token
only. For those, rows are fed token by token: a draft then saves nothing, but plain decoding keeps
its usual price.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from forerun.models.base import Kept, check_commit, shared_prefix
from forerun.models.forward import Forward
from forerun.models.watch import Watch

MOST_REPLAYED = 8  # pending tokens fed together with a draft; more get a separate pass


@dataclass
class _Row:
    cache: Any = None  # the cache that the model made; None: nothing is stored
    fed: list[int] = field(default_factory=list)  # tokens scored since the last commit
    saves: list[tuple[int, Any]] = field(default_factory=list)  # (how many of `fed`, state)


class SnapshotRows:
    """Rows of any model that returns a cache.

    token_by_token: feed one token per call, for models that continue correctly only so.
    """

    def __init__(self, forward: Forward, num_rows: int, token_by_token: bool = False) -> None:
        self.lengths = [0] * num_rows
        self.shown = [0] * num_rows  # tokens whose hidden states a commit has kept
        self.watch: Watch | None = None
        self._rows = [_Row() for _ in range(num_rows)]
        self._forward = forward
        self._token_by_token = token_by_token

    def score(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], num_logits: Sequence[int]
    ) -> Any:
        logits = [
            self._score_row(row, row_tokens, count)
            for row, row_tokens, count in zip(rows, tokens, num_logits, strict=True)
        ]
        return join_rows(logits)

    def commit(self, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        counts = check_commit(rows, [len(self._rows[row].fed) for row in rows], kept)
        for row, count in zip(rows, counts, strict=True):
            self._commit_row(row, count)

    def watch_layers(self, layers: Sequence[int]) -> None:
        """Start watching; scores made before that cannot be reused."""
        for row in range(len(self._rows)):
            self._forget(row)
        self.watch = Watch(layers, self.lengths)
        self.shown[:] = self.lengths

    def copy_prefix(self, source: int, row: int, length: int) -> int:
        """Copy the state of `source`; a state that cannot be cropped is copied whole or not at
        all."""
        mine = self._rows[source]
        length = min(length, self.lengths[source])
        if length == 0 or (length < self.lengths[source] and not is_croppable(mine.cache)):
            self.release(row)
            return 0
        cache, saves = deepcopy((mine.cache, mine.saves[:1]))  # the first save is the last commit
        self._rows[row] = _Row(cache, list(mine.fed), saves)
        self.lengths[row] = self.lengths[source]
        return self._truncate(source, row, length)

    def truncate(self, row: int, length: int) -> int:
        """Cut a row to `length` tokens, or empty it if its state cannot be cropped; returns the
        length that it has then."""
        return self._truncate(row, row, length)

    def _truncate(self, source: int, row: int, length: int) -> int:
        """The same, for a row whose states are those of `source`."""
        mine = self._rows[row]
        self._forget(row)
        if length < self.lengths[row] and length > 0 and is_croppable(mine.cache):
            crop(mine.cache, length)
            self.lengths[row] = length
        elif length < self.lengths[row]:
            self.release(row)
        self.shown[row] = self.lengths[row]
        if self.watch is not None:
            self.watch.copy(source, row, self.lengths[row])
        return self.lengths[row]

    def release(self, row: int) -> None:
        self._rows[row] = _Row()
        self.lengths[row] = self.shown[row] = 0
        if self.watch is not None:
            self.watch.release(row)

    def _score_row(self, row: int, tokens: Sequence[int], num_logits: int) -> Any:
        """Logits (1, num_logits, V).

        All but the last `num_logits - 1` tokens are committed text. If they were fed together with
        the draft, they would be replayed after every rejection and accumulate. So more than
        MOST_REPLAYED of them get a separate pass, with a save after it.
        """
        mine = self._rows[row]
        known = len(mine.fed)
        if shared_prefix(mine.fed, tokens, len(tokens) - num_logits) < known:
            self._forget(row)
            known = 0
        settled = len(tokens) - num_logits + 1
        if num_logits == 1 or settled - known <= MOST_REPLAYED or is_croppable(mine.cache):
            return self._feed(row, tokens[known:], num_logits)
        text = self._feed(row, tokens[known:settled], 1)
        return torch.cat([text, self._feed(row, tokens[settled:], num_logits - 1)], dim=1)

    def _feed(self, row: int, tokens: Sequence[int], num_logits: int) -> Any:
        """Advance a row's cache; logits (1, num_logits, V)."""
        mine = self._rows[row]
        ids = self._forward.tokens(tokens)  # (1, N)
        # Positions are always passed: without them, some models count from 0 in every pass.
        start = self.lengths[row] + len(mine.fed)
        positions = torch.arange(start, start + len(tokens), device=ids.device)[None]
        step = 1 if self._token_by_token and mine.cache is not None else len(tokens)
        parts = []
        for begin in range(0, len(tokens), step):
            now = slice(begin, begin + step)
            arguments: dict[str, Any] = {}
            if self._forward.takes_positions:
                arguments["position_ids"] = positions[:, now]
            mine.saves.append((len(mine.fed), save(mine.cache)))
            if self.watch is not None:
                arguments["output_hidden_states"] = True
            num_columns = min(num_logits, step)
            done = self._forward(ids[:, now], num_columns, mine.cache, **arguments)
            mine.cache = done.cache
            mine.fed += tokens[now]
            if self.watch is not None:
                self.watch.see([(row, len(tokens[now]))], done.hidden_states)
            parts.append(done.logits)
        return parts[0] if len(parts) == 1 else torch.cat(parts[-num_logits:], dim=1)

    def _forget(self, row: int) -> None:
        """Undo a score that was never committed."""
        if self.watch is not None:
            self.watch.forget(row)
        self._go_back(row, 0)

    def _commit_row(self, row: int, kept: int) -> None:
        """Keep the first `kept` scored tokens of a row. Hidden states are kept of all of them, also
        of those that will be replayed; these are not kept again."""
        if self.watch is not None:
            first = self.shown[row] - self.lengths[row]
            self.watch.keep(row, list(range(first, kept)) if first else range(kept))
            self.shown[row] += max(kept - first, 0)
        self._go_back(row, kept)

    def _go_back(self, row: int, kept: int) -> None:
        """Store the first `kept` scored tokens of a row, or as many as the last usable save saw."""
        mine = self._rows[row]
        if kept < len(mine.fed) and is_croppable(mine.cache):
            crop(mine.cache, self.lengths[row] + kept)
        elif kept < len(mine.fed):
            kept, saved = next(entry for entry in reversed(mine.saves) if entry[0] <= kept)
            mine.cache = restore(mine.cache, saved)
        self.lengths[row] += kept
        mine.fed, mine.saves = [], []


def join_rows(logits: Sequence[Any]) -> Any:
    """Stack rows (1, N_r, V) into (R, max N, V)."""
    if len(logits) == 1:
        return logits[0]
    most = max(part.shape[1] for part in logits)
    joined = logits[0].new_zeros((len(logits), most, logits[0].shape[2]))
    for index, part in enumerate(logits):
        joined[index, : part.shape[1]] = part[0]
    return joined


def is_croppable(cache: Any) -> bool:
    """Whether a cache contains the keys and values of every token and nothing else."""
    return type(cache) is DynamicCache and all(type(x) is DynamicLayer for x in cache.layers)


def crop(cache: Any, length: int) -> None:
    """Forget all but the first `length` tokens of a cache, by taking views."""
    for layer in cache.layers:
        if layer.is_initialized:
            layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]


def save(cache: Any) -> Any:
    """A copy of the state of a cache, which later passes do not change."""
    if type(cache) is not DynamicCache:
        return deepcopy(cache)
    return [] if is_croppable(cache) else [_save_layer(layer) for layer in cache.layers]


def restore(cache: Any, saved: Any) -> Any:
    """A cache in the state of `saved`, which must not be used again."""
    if type(cache) is not DynamicCache or saved is None:
        return saved
    for layer, attributes in zip(cache.layers, saved, strict=True):
        vars(layer).update(attributes)
    return cache


def _save_layer(layer: Any) -> dict[str, Any]:
    """The state of one layer.  Recurrent and convolution states are updated in place, so they are
    copied; keys and values of dynamic layers are replaced by longer ones, so references are enough.
    """
    is_appended = isinstance(layer, DynamicLayer)
    return {
        name: value if is_appended and name in ("keys", "values") else _copy(value)
        for name, value in vars(layer).items()
    }


def _copy(value: Any) -> Any:
    """Like `deepcopy`, but ten times faster for the contents of cache layers."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return value if isinstance(value, int | str | torch.dtype | torch.device) else deepcopy(value)


class RecomputeRows:
    """The recompute strategy: rows without a cache, for models without a reliable one.

    Lengths stay zero, so the engine feeds the whole text of each row to every score.
    """

    def __init__(self, forward: Forward, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self._scored = [0] * num_rows
        self._forward = forward

    def score(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], num_logits: Sequence[int]
    ) -> Any:
        logits = []
        for row, row_tokens, count in zip(rows, tokens, num_logits, strict=True):
            ids = self._forward.tokens(row_tokens)
            logits.append(self._forward(ids, count, use_cache=False).logits)
            self._scored[row] = len(row_tokens)
        return join_rows(logits)

    def commit(self, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        check_commit(rows, [self._scored[row] for row in rows], kept)
        for row in rows:
            self._scored[row] = 0

    def copy_prefix(self, source: int, row: int, length: int) -> int:
        return self.truncate(row, length)

    def truncate(self, row: int, length: int) -> int:
        """Forget uncommitted scores; nothing is stored, so the length stays 0."""
        self._scored[row] = 0
        return 0

    def release(self, row: int) -> None:
        self._scored[row] = 0
