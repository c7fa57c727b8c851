"""Parts of prompts that a captured round reads in the same pass, after the tokens of its lanes.

A pass with answers alone mostly waits for the weights to be read, so prompt tokens in the same pass
cost little more than their products; in a pass of their own they would read all weights again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from forerun.gpu.shapes import MOST_TOKENS, PER_SEGMENT, Inputs, padded_pass

SIZES = (16, 64, 192, 320)
"""Prompt tokens of the smaller blocks. A block is then enlarged until it fills its padded pass."""
TOTALS = {64: 512, 128: 768}
"""The size of the largest pass with a block, in tokens, for each largest number of tokens of the
usual pass (without a block). Such a pass takes about 2.6 times as long as a usual one."""
PER_PART = 8
"""A block has room for one segment of attention for every this many tokens."""

Part = tuple[int, int, Sequence[int]]
"""Part of a prompt: its row, the slot of its first token, and its tokens, which go to that slot and
the following ones."""


def most_read(num_lanes: int, num_usual: int) -> int:
    """The number of prompt tokens in the largest block that fits beside this many lanes.

    num_usual: the tokens of the same pass without a block.
    """
    totals = (total for most, total in TOTALS.items() if num_usual <= most)
    return next(totals, MOST_TOKENS) - num_lanes


def block_sizes(num_lanes: int) -> list[int]:
    """The sizes in tokens of the blocks that fill a pass beside this many lanes."""
    totals = {padded_pass(num_lanes + size) for size in SIZES}
    totals |= {total for total in (*TOTALS.values(), MOST_TOKENS) if total > num_lanes}
    return sorted(total - num_lanes for total in totals)


def block_size(num_tokens: int, num_lanes: int) -> int:
    """The size of the smallest block with room for `num_tokens`, or of the largest block."""
    sizes = block_sizes(num_lanes)
    return next((size for size in sizes if size >= num_tokens), sizes[-1]) if num_tokens else 0


def count(parts: Sequence[Part]) -> int:
    """The number of tokens of all parts."""
    return sum(len(tokens) for _, _, tokens in parts)


def num_segments(size: int) -> int:
    """The number of segments of a block of this size."""
    return -(-size // PER_PART)


def fitting(parts: Sequence[Part], size: int) -> tuple[list[Part], list[Part]]:
    """Divide parts of prompts into those that fit a block of this size, and those to read in an
    earlier pass (such as the beginning of a part that does not fit)."""
    inside, before, segments = [], [], num_segments(size)
    for row, first, tokens in parts:
        room = min(size, segments * PER_SEGMENT)
        cut = max(0, len(tokens) - room)
        if cut:
            before.append((row, first, tokens[:cut]))
        if cut < len(tokens):
            inside.append((row, first + cut, tokens[cut:]))
            size -= len(tokens) - cut
            segments -= -(-(len(tokens) - cut) // PER_SEGMENT)
    return inside, before


class Block:
    """The prompt tokens in the pass of a captured round, after the tokens and segments of its
    lanes."""

    def __init__(self, size: int, inputs: Inputs, num_tokens: int, num_lanes: int) -> None:
        self._first, count = num_tokens, num_segments(size)
        self._size = size
        device = inputs.packed.device
        self._packed = torch.zeros(3 * size + 2 * count, dtype=torch.int32, device=device)
        ids, rows, slots, segments = self._packed.split([size, size, size, 2 * count])
        rows.fill_(-1)
        self._moves = [
            (inputs.ids[num_tokens:], ids),
            (inputs.rows[num_tokens:], rows),
            (inputs.slots[num_tokens:], slots),
            (inputs.positions[num_tokens:], slots),
            (inputs.segments[2 * num_lanes :], segments),
        ]

    def put(self, parts: Sequence[Part]) -> None:
        """Set the tokens that the next round reads, in one copy."""
        size, at = self._size, 0
        packed = np.zeros(self._packed.shape[0], np.int32)
        packed[size : 2 * size] = -1
        segments: list[int] = []
        for row, first, tokens in parts:
            end = at + len(tokens)
            packed[at:end] = tokens
            packed[size + at : size + end] = row
            packed[2 * size + at : 2 * size + end] = np.arange(first, first + len(tokens))
            for begin in range(at, end, PER_SEGMENT):
                segments += self._first + begin, min(PER_SEGMENT, end - begin)
            at = end
        packed[3 * size : 3 * size + len(segments)] = segments
        self._packed.copy_(torch.from_numpy(packed), non_blocking=True)

    def queue(self) -> None:
        """Launch the copies to the inputs of the pass."""
        for target, source in self._moves:
            target.copy_(source)
