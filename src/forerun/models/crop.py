"""The crop strategy: attention caches, where forgetting a token is lowering a number.

Rows with similar numbers of new tokens share a pass and are padded on the right. Padding writes
land past a row's length, where nothing reads them and the next pass overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from forerun.models.attention import LayerKind, attention_mask
from forerun.models.base import check_commit, shared_prefix
from forerun.models.forward import Forward
from forerun.models.ragged_cache import Placement, RaggedCache

MOST_TOKENS = 1024  # of one row in one pass: bounds the mask and the activations of a long prompt
MOST_PADDED = 4096  # of all rows in one pass, padding included


class CropRows:
    """Rows of an attention-only model."""

    def __init__(
        self, forward: Forward, kinds: list[LayerKind], num_rows: int, capacity: int
    ) -> None:
        self.lengths = [0] * num_rows
        self._fed: list[list[int]] = [[] for _ in range(num_rows)]  # since the last commit
        self._forward = forward
        self._kinds = list(dict.fromkeys(kinds))
        self._cache = RaggedCache(kinds, num_rows, capacity)
        self._device = forward.device
        self._dtype = forward.dtype

    def score(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], num_logits: Sequence[int]
    ) -> Any:
        starts, fresh = [], []
        for row, row_tokens, count in zip(rows, tokens, num_logits, strict=True):
            known = shared_prefix(self._fed[row], row_tokens, len(row_tokens) - count)
            starts.append(self.lengths[row] + known)
            fresh.append(row_tokens[known:])
            self._fed[row] = []  # nothing to build on if a pass is interrupted
        logits = self._score_groups(rows, starts, fresh, num_logits)
        for row, row_tokens in zip(rows, tokens, strict=True):
            self._fed[row] = list(row_tokens)
        return logits

    def commit(self, rows: Sequence[int], kept: Sequence[int]) -> None:
        check_commit(rows, [len(self._fed[row]) for row in rows], kept)
        for row, count in zip(rows, kept, strict=True):
            self.lengths[row] += count
            self._fed[row] = []

    def release(self, row: int) -> None:
        self.lengths[row] = 0
        self._fed[row] = []

    def _score_groups(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
    ) -> Any:
        """Passes of similar rows, put back together as (R, max N, V)."""
        groups = group_rows([len(row_tokens) for row_tokens in tokens])
        if len(groups) == 1:
            return self._score_group(rows, starts, tokens, num_logits)
        logits = None
        for group in groups:
            scored = self._score_group(
                [rows[i] for i in group],
                [starts[i] for i in group],
                [tokens[i] for i in group],
                [num_logits[i] for i in group],
            )
            if logits is None:
                logits = scored.new_zeros((len(rows), max(num_logits), scored.shape[2]))
            logits[group, : scored.shape[1]] = scored
        return logits

    def _score_group(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
    ) -> Any:
        """One pass for all rows, or several for a single long one; logits (R, max N, V)."""
        if len(rows) > 1:
            return self._pass(rows, starts, tokens, num_logits)
        parts = []
        for begin in range(0, len(tokens[0]), MOST_TOKENS):
            piece = tokens[0][begin : begin + MOST_TOKENS]
            missing = len(tokens[0]) - begin - len(piece)  # tokens after this piece
            wanted = min(num_logits[0] - missing, len(piece))
            logits = self._pass(rows, [starts[0] + begin], [piece], [max(wanted, 1)])
            if wanted > 0:
                parts.append(logits)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _pass(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
    ) -> Any:
        counts = [len(row_tokens) for row_tokens in tokens]
        width, shortest, longest = max(counts), min(starts), max(starts)
        is_even = shortest == longest and width == min(counts)
        is_run = rows[-1] - rows[0] == len(rows) - 1 and list(rows) == sorted(rows)
        if is_even and is_run:
            ids = torch.tensor(tokens, dtype=torch.long, device=self._device)
            positions = torch.arange(shortest, shortest + width, device=self._device)
            positions = positions.expand(len(rows), width)
            place = Placement(slice(rows[0], rows[-1] + 1), shortest, longest, shortest + width)
        else:
            plan = torch.from_numpy(_plan(rows, starts, tokens, width)).to(self._device)
            ids, positions, slots, indices = plan
            run = slice(rows[0], rows[-1] + 1) if is_run else indices[:, 0].contiguous()
            place = Placement(run, shortest, longest, longest + width, indices[:, :1], slots)
        # Transformers builds the right mask itself when rows agree and there is either nothing
        # stored or one new token; for full attention that mask is no mask, which is faster.
        mask = None
        if not (is_even and (width == 1 or longest == 0)):
            mask = attention_mask(self._kinds, positions, shortest, place.end, self._dtype)
        self._cache.placement = place
        columns, index = _columns(counts, num_logits)
        if not isinstance(columns, int):
            columns = torch.tensor(columns, device=self._device)
        logits, _ = self._forward(
            ids, columns, self._cache, position_ids=positions, attention_mask=mask
        )
        if index is None:
            return logits
        at = torch.tensor(index, device=logits.device)  # (R, max N)
        return logits[torch.arange(len(rows), device=logits.device)[:, None], at]


def group_rows(counts: Sequence[int]) -> list[list[int]]:
    """Split rows into passes so that little is padded: decoding rows together, prompts apart.

    A row joins a pass while it has at most about twice the tokens of its shortest row, so less
    than half of a large pass is padding; small passes cost the same whatever is in them.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(counts)), key=counts.__getitem__):
        count = counts[index]
        group = groups[-1] if groups else []
        fits = group and count <= min(2 * counts[group[0]] + 16, MOST_TOKENS)
        if fits and (count <= 32 or (len(group) + 1) * count <= MOST_PADDED):
            group.append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups]


def _plan(
    rows: Sequence[int], starts: Sequence[int], tokens: Sequence[Sequence[int]], width: int
) -> Any:
    """Ids, positions, slots and rows as one array (4, R, N), so one copy reaches the device.

    Padding repeats the position of the row's last token, which a learned table surely has, but
    is written to the slots that follow it.
    """
    plan = np.zeros((4, len(rows), width), np.int64)
    offsets = np.arange(width)
    for index, (row, start, row_tokens) in enumerate(zip(rows, starts, tokens, strict=True)):
        plan[0, index, : len(row_tokens)] = row_tokens
        plan[1, index] = start + np.minimum(offsets, len(row_tokens) - 1)
        plan[2, index] = start + offsets
        plan[3, index] = row
    return plan


def _columns(
    counts: Sequence[int], num_logits: Sequence[int]
) -> tuple[int | list[int], list[list[int]] | None]:
    """Which columns of a padded pass to project, and where each row's logits are among them.

    Only columns some row asked for are projected: the vocabulary is the widest axis by far. The
    second result (R, max N) is None when the projected columns already are the answer.
    """
    width, most = max(counts), max(num_logits)
    firsts = [count - wanted for count, wanted in zip(counts, num_logits, strict=True)]
    if min(firsts) == max(firsts):
        return width - firsts[0], None
    needed = sorted(
        {first + j for first, n in zip(firsts, num_logits, strict=True) for j in range(n)}
    )
    where = {column: index for index, column in enumerate(needed)}
    at = [
        [where[first + min(j, wanted - 1)] for j in range(most)]
        for first, wanted in zip(firsts, num_logits, strict=True)
    ]
    is_suffix = needed[0] == width - len(needed)
    return (len(needed) if is_suffix else needed), at
