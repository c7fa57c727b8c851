"""The shapes of passes, which are fixed when a pass is captured, and a pass's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
import triton

MOST_TOKENS = 1024  # in one pass
MOST_OF_ROUND = 512  # in the pass of a captured round
MOST_LOGITS = 512  # rows of logits in one pass
NARROW = 128  # tokens of a pass whose size is a power of two; those of others are multiples of it
PER_SEGMENT = 16  # tokens of a segment of attention at most
WHOLE = 8  # tokens of a segment of a wide pass on average, from which on no text is cut
MANY_SEGMENTS, FEW_CHUNKS = 32, 8  # of a pass, at least and at most, in which no text is cut
CHUNK = 128  # keys of a chunk of attention; another number gives other bits


class PassShape(NamedTuple):
    """The settings that are fixed when a pass is captured."""

    num_tokens: int
    num_logits: int
    num_segments: int
    per_segment: int  # tokens
    num_chunks: int  # of the longest text, at most
    branch_width: int = 0  # 0: no trees
    num_layers: int = 0  # only the first ones, under the model's own head; 0: all
    has_block: bool = False  # parts of prompts stand behind other tokens

    @property
    def is_whole(self) -> bool:
        """Whether one program attends to all chunks of a segment. This needs enough programs to
        fill the device, none of which has much more to do than the others."""
        is_prompt = self.num_tokens > NARROW and self.num_tokens >= WHOLE * self.num_segments
        is_short = self.num_segments >= MANY_SEGMENTS and self.num_chunks <= FEW_CHUNKS
        return (is_prompt or is_short or self.has_block) and not self.branch_width


@dataclass
class Inputs:
    """The inputs of a pass, as views of one tensor of 32-bit integers, so that one copy fills them
    all."""

    shape: PassShape
    packed: Any

    @classmethod
    def empty(cls, shape: PassShape, device: Any) -> Inputs:
        """Allocate inputs for passes of this shape."""
        made = cls(shape, torch.zeros(cls.size(shape), dtype=torch.int32, device=device))
        made.rows.fill_(-1)
        return made

    @staticmethod
    def size(shape: PassShape) -> int:
        per_token = 5 + shape.branch_width
        return shape.num_tokens * per_token + shape.num_logits + 2 * shape.num_segments

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        shape, m = self.shape, self.shape.num_tokens
        sizes = [m, m, m, m, m, m * shape.branch_width, shape.num_logits, 2 * shape.num_segments]
        return tuple(self.packed.split(sizes))

    @property
    def ids(self) -> Any:  # (M,)
        return self._parts[0]

    @property
    def rows(self) -> Any:  # (M,): -1 for padding
        return self._parts[1]

    @property
    def slots(self) -> Any:  # (M,): where in the row's cache
        return self._parts[2]

    @property
    def positions(self) -> Any:  # (M,): in the text
        return self._parts[3]

    @property
    def before(self) -> Any:  # (M,): slots before the tree
        return self._parts[4]

    @property
    def branches(self) -> Any:  # (M * branch_width,): slots of a node's ancestors and its own
        return self._parts[5]

    @property
    def picked(self) -> Any:  # (num_logits,): tokens whose logits are computed
        return self._parts[6]

    @property
    def segments(self) -> Any:  # (2 * num_segments,): first token and count; a count of 0 is none
        return self._parts[7]


def padded_pass(count: int) -> int:
    """The number of tokens of the captured pass used for `count` tokens."""
    if count > NARROW:
        return -(-count // NARROW) * NARROW
    return int(triton.next_power_of_2(count))


def num_chunks(length: int) -> int:
    """The number of chunks of attention for texts of this length, rounded up to a bucket."""
    return int(triton.next_power_of_2(max(1, -(-length // CHUNK))))
