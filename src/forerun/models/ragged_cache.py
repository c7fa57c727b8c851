"""Keys and values of rows that differ in length, behind the cache interface of transformers.

Each layer holds one tensor for all rows. A pass writes every row at its own offset, and a row's
length is a number kept outside, so committing and rolling back a chain move no data: slots past the
length are masked until they are overwritten. Only the path of a tree is moved together.

The tensor has room for the rows that were used so far and for the longest text among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers.cache_utils import Cache, CacheLayerMixin

from forerun.models.attention import LayerKind
from forerun.models.base import room

BLOCK = 64  # tokens: the unit of allocation


@dataclass(frozen=True)
class Placement:
    """The slots that one pass reads and writes, in every layer."""

    rows: Any  # a slice of consecutive rows, or their indices (R,)
    earliest: int  # the smallest position of a token in this pass
    start: int  # the first slot that is written in the longest row
    end: int  # one past the last slot that is written
    row_index: Any = None  # (R, 1) with slots (R, N), or None when all rows write
    slots: Any = None  # the slots from start to end, for rows that do not all write


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys (rows, heads, slots, head size) and values of one layer."""

    keys: Any
    values: Any
    is_initialized: bool

    def __init__(self, cache: RaggedCache, kind: LayerKind) -> None:
        super().__init__()
        self.cache = cache
        self.kind = kind
        self.is_sliding = kind.window is not None

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Write keys and values (R, heads, N, head size); return the keys and values that
        the rows may attend to, (R, heads, keys, head size) each."""
        at = self.cache.placement
        if not self._has_room(at.end):
            self.lazy_initialization(key_states, value_states)
        first = self.kind.first_visible(at.earliest)
        visible = []
        for stored, new in ((self.keys, key_states), (self.values, value_states)):
            if at.slots is None:
                stored[at.rows, :, at.start : at.end] = new
            else:
                index = at.row_index.to(stored.device), slice(None), at.slots.to(stored.device)
                stored[index] = new.transpose(1, 2)
            rows = at.rows if isinstance(at.rows, slice) else at.rows.to(stored.device)
            visible.append(stored[rows, :, first : at.end])  # a view if rows are consecutive
        return visible[0], visible[1]

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Allocate memory, or more of it for more tokens or rows.

        It is filled with zeros, because the value of a masked slot is still multiplied by a weight
        of zero, and NaN times zero would be NaN.
        """
        old = (self.keys, self.values) if self.is_initialized else (None, None)
        num_rows, slots = (0, 0) if old[0] is None else (old[0].shape[0], old[0].shape[2])
        end = self.cache.placement.end
        needed = -(-end // BLOCK) * BLOCK  # padding may reach a little past the hint
        slots_now = slots if end <= slots else room(slots, needed, self.cache.capacity)
        grown = []
        for stored, new in zip(old, (key_states, value_states), strict=True):
            larger = new.new_zeros((self.cache.num_rows, new.shape[1], slots_now, new.shape[3]))
            if stored is not None:
                larger[:num_rows, :, :slots] = stored
            grown.append(larger)
        self.keys, self.values = grown
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def copy_row(self, source: int, row: int, length: int) -> None:
        """Copy the first slots of one row to another."""
        if not self._has_room(length):
            self.lazy_initialization(self.keys, self.values)
        for stored in (self.keys, self.values):
            stored[row, :, :length] = stored[source, :, :length]

    def move(self, rows: Any, sources: Any, targets: Any) -> None:
        """Copy slots `sources` (M,) of rows (M,) to slots `targets` (M,); all reads come before the
        first write."""
        for stored in (self.keys, self.values):
            at = [index.to(stored.device) for index in (rows, sources, targets)]
            stored[at[0], :, at[2]] = stored[at[0], :, at[1]]

    def get_seq_length(self) -> int:
        """The number of tokens before this pass in the longest row; transformers calls this."""
        return self.cache.placement.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys that `update` returns, and the first of them; transformers calls this
        when no mask is passed."""
        at = self.cache.placement
        first = self.kind.first_visible(at.earliest)
        return at.end - first, first

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in earlier versions of transformers 5

    def _has_room(self, slots: int) -> bool:
        is_made = self.is_initialized and self.keys.shape[2] >= slots
        return is_made and self.keys.shape[0] >= self.cache.num_rows


class RaggedCache(Cache):  # type: ignore[misc]
    """The layers, and the placement of the pass that is running."""

    placement: Placement

    def __init__(self, kinds: list[LayerKind], most_rows: int, capacity: int) -> None:
        super().__init__(layers=[RaggedLayer(self, kind) for kind in kinds])
        self.num_rows = 0  # rows for which layers have room after their next pass
        self.most_rows = most_rows
        self.capacity = capacity  # a hint

    def reserve_rows(self, num_rows: int) -> None:
        """Let layers make room for `num_rows` rows in their next pass or copy."""
        if num_rows > self.num_rows:
            self.num_rows = room(self.num_rows, num_rows, self.most_rows)

    def move(self, moves: Any) -> None:
        """Copy slots within rows: (M, 3) of row, from, to."""
        for layer in self.layers:
            if layer.is_initialized:  # some layers read the keys of another
                layer.move(*moves.unbind(1))

    def copy_row(self, source: int, row: int, length: int) -> None:
        """Copy the first `length` tokens of one row to another."""
        self.reserve_rows(row + 1)
        for layer in self.layers:
            if layer.is_initialized:
                layer.copy_row(source, row, length)
