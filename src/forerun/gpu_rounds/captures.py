"""Chooses which rounds are captured: for a few numbers of lanes and draft lengths, mostly in
advance.

Capturing a round takes longer than running it fifty times. If the draft policy chooses the draft
length, all lengths that it may choose are captured before the first round, and kept with the
storage for later calls. The time of capturing is not counted as time of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from forerun.base.clock import working
from forerun.gpu.heads_rows import HeadsRows
from forerun.gpu.heads_storage import HeadsStorage
from forerun.gpu.rows import GpuRows
from forerun.gpu.shapes import MOST_OF_ROUND, NARROW, num_chunks
from forerun.gpu.storage import Storage
from forerun.gpu_rounds.blocks import block_sizes, most_read
from forerun.gpu_rounds.lanes import Lanes
from forerun.gpu_rounds.rounds import CapturedRound, RoundShape
from forerun.gpu_rounds.tree_rounds import TreeRound
from forerun.kernels.compiling import compile_together
from forerun.rules.types import DraftLength
from forerun.trees.tree import Tree

STEERED = (0, 1, 2, 3, 5, 7)
"""The draft lengths that the policy may choose from. With 7 as the longest instead of 8, one size
of decision kernel fewer is compiled."""
LONGEST = 15
"""The number of tokens of the longest draft."""
MARGIN = 2 * (LONGEST + 1)
"""The number of slots after a text that two successive rounds may write to."""
SHRINK = 4
"""The numbers of lanes for which rounds are captured each differ by this factor."""
MANY = 64
"""If there are more rows than tokens in a narrow pass, the largest number of lanes is rounded up to
a multiple of this."""
SHORT = 1024
"""Rounds are captured for texts of this many tokens, or of the full capacity if that is less; for
longer texts only when they come."""
FEW_TOKENS = 4096
"""Rounds are captured for texts so long that all rows together have at least this many tokens, so
that calls with short texts can share them."""
MOST_SECONDS = 10.0
"""Seconds after which no smaller size of round is captured in advance. The storage then never uses
the missing sizes."""


DraftRows = GpuRows | HeadsRows
"""The rows of a drafter on the device."""


class Captures:
    """The captured rounds for the rows of one target, for at most `num_rows` requests.

    draft_length: 0 without a drafter.
    is_on_host: drafts are made on the host.
    tree: the tree that all drafts fill, whose height is then the draft length; None: chains.
    """

    def __init__(
        self,
        state: GpuRows,
        num_rows: int,
        draft_length: DraftLength,
        *,
        is_on_host: bool = False,
        tree: Tree | None = None,
    ) -> None:
        self._state = state
        self._draft_length = draft_length
        self._is_on_host = is_on_host
        self.tree = tree
        self._top = 1 << max(num_rows - 1, 0).bit_length()
        if num_rows > NARROW:  # whose passes have whole tiles of tokens
            self._top = -(-num_rows // MANY) * MANY
        self._warm: dict[int, list[int]] = {}  # by size: the lengths that are captured
        self.seconds = 0.0  # that captures took so far
        for size in self.sizes:  # now, so that memory does not grow when one is met late
            self.lanes(size)

    @cached_property
    def sizes(self) -> list[int]:
        """The numbers of lanes that are captured, the largest first."""
        sizes = [self._top]
        while sizes[-1] >= SHRINK:
            sizes.append(sizes[-1] // SHRINK)
        return sizes

    def size(self, num_requests: int) -> int:
        """The number of lanes of a round for this many requests."""
        usable = self._warm or self.sizes
        return min((size for size in usable if size >= num_requests), default=self._top)

    def lengths(self, size: int) -> list[int]:
        """The draft lengths of rounds with this many lanes, rising from 0."""
        most = MOST_OF_ROUND // size - 1
        if size in self._warm:
            return self._warm[size]
        if self.tree is not None:
            return [0, self.tree.height]
        if self._draft_length == "auto":
            return [length for length in STEERED if length <= most]
        return sorted({0, min(self._draft_length, LONGEST, most)})

    def length(self, size: int, asked: Sequence[int]) -> int:
        """The captured draft length to use if requests ask for drafts of these lengths."""
        lengths, most = self.lengths(size), max(asked, default=0)
        return min((length for length in lengths if length >= most), default=lengths[-1])

    def num_tokens(self, size: int, asked: Sequence[int]) -> int:
        """The number of tokens that the lanes have in the pass of a round, given their number and
        the requested draft lengths."""
        length = self.length(size, asked)
        return size * (1 + (len(self.tree) if self.tree and length else length))

    def room(self, size: int, asked: Sequence[int]) -> int:
        """How many prompt tokens a round with these lanes and drafts can read."""
        return most_read(size, self.num_tokens(size, asked))

    def num_chunks(self, longest: int) -> int:
        """The number of attention chunks for texts of this length."""
        usual = max(self._state.capacity or SHORT, FEW_TOKENS // len(self._state.lengths))
        return num_chunks(max(longest, min(usual, SHORT)))

    def lanes(self, size: int) -> Lanes:
        storage = self._state.storage
        if size not in storage.lanes:
            storage.lanes[size] = Lanes(size, storage.weights.head.device)
        lanes: Lanes = storage.lanes[size]
        return lanes

    def round(
        self, shape: RoundShape, drafts: DraftRows | None, *, goes_on: bool = False
    ) -> CapturedRound:
        """The captured round of this shape; it is captured now if necessary.

        goes_on: other requests are being answered, so prompts of all lengths may come. If the shape
        has a block, rounds with all other blocks beside answers are then captured too.
        """
        begin, made = working(), self._made(shape, drafts)
        if not made.is_ready:
            sizes, size = [], shape.num_lanes
            if shape.block and goes_on:
                most = max(self.room(size, [length]) for length in self.lengths(size))
                sizes = [block for block in block_sizes(size) if block <= most]
            shapes = [shape._replace(block=block) for block in sizes if block != shape.block]
            self._prepare([made, *(self._made(other, drafts) for other in shapes)])
            self.seconds += working() - begin
        return made

    def _prepare(self, rounds: Sequence[CapturedRound]) -> None:
        if self._state.storage.weights.head.is_cuda:
            compile_together([made.queue for made in rounds if not made.is_ready])
        for made in rounds:
            made.prepare()

    def _made(self, shape: RoundShape, drafts: DraftRows | None) -> CapturedRound:
        """The round of this shape, perhaps not captured yet."""
        storage, other, lanes = self._state.storage, storage_of(drafts), self.lanes(shape.num_lanes)
        made: CapturedRound | None = storage.rounds.recall(shape)
        if made is None or made.draft is not other:
            if shape.is_tree:
                assert isinstance(other, HeadsStorage)
                made = TreeRound(shape, lanes, storage, other)
            else:
                made = CapturedRound(shape, lanes, storage, other)
            storage.rounds.keep(shape, made)
        return made

    def warm_up(self, shape: RoundShape, drafts: DraftRows | None) -> None:
        """Capture the rounds that the policy may choose, before the first round of this shape."""
        is_drafted = shape.draft_length > 0 or self._is_on_host
        if self._warm or self._draft_length != "auto" or not is_drafted:
            return
        shape = shape._replace(block=0)
        key = self._top, shape._replace(num_lanes=0, draft_length=0, draws=drafts is not None)
        both = [rows.storage.warm for rows in (self._state, drafts) if rows is not None]
        known = both[0].get(key)
        if known is None or any(warm.get(key) is not known for warm in both):
            known = self._captured(shape, drafts)
            for warm in both:
                warm[key] = known
        self._warm = known

    def _captured(self, shape: RoundShape, drafts: DraftRows | None) -> dict[int, list[int]]:
        """Capture rounds of all sizes, as long as time allows. Returns the captured draft lengths
        by number of lanes."""
        known: dict[int, list[int]] = {}
        begin, before = working(), self.seconds
        for size in self.sizes:
            if known and working() - begin > MOST_SECONDS:
                break
            self._prepare(self._like(shape, size, drafts))
            known[size] = self.lengths(size)
        self.seconds = before + working() - begin
        return known

    def _like(self, shape: RoundShape, size: int, drafts: DraftRows | None) -> list[CapturedRound]:
        """Rounds like this one with another number of lanes, one for each draft length."""
        made = []
        for length in self.lengths(size):
            some = drafts_in(drafts, length)
            other = shape._replace(num_lanes=size, draft_length=length, draws=some is not None)
            made.append(self._made(other, some))
        return made


def drafts_in(drafts: DraftRows | None, length: int) -> DraftRows | None:
    """The drafter's rows that a round with this draft length uses; None if it uses none."""
    has_part = drafts is not None and (length > 0 or drafts.is_always_told)
    return drafts if has_part else None


def storage_of(rows: DraftRows | None) -> Storage | None:
    return None if rows is None else rows.storage
