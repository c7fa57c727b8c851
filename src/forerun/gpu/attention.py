"""Attention of a pass: how its kernels are launched, and the memory between them."""

from __future__ import annotations

from operator import ge
from typing import Any, NamedTuple

import torch
import triton

from forerun.gpu import shapes
from forerun.gpu.kernels.attention import add_chunks, attend, attend_whole
from forerun.gpu.shapes import (
    MANY_SEGMENTS,
    MOST_OF_ROUND,
    MOST_TOKENS,
    Inputs,
    PassShape,
    num_chunks,
)
from forerun.gpu.tiles import FEWEST_ROWS
from forerun.gpu.weights import Weights

BLOCK_KEYS = 64  # keys of one product within a chunk; another number gives other bits
WARPS, STAGES, WHOLE_STAGES = 4, 3, 2
ADDED_LATER = 64  # chunks of the longest text, from which on a kernel of its own adds them up
AHEAD = 32  # chunks that it asks for together, at most as many
ADDING_COLUMNS, WARP = 128, 32  # of a program of it, one for each thread; threads
ARENA = 64  # part of a device's memory that the chunks of attention may have between them


class Cache(NamedTuple):
    """Keys and values of all layers, in pages; the pages of rows; and the rotary tables."""

    keys: Any  # (layers, pages, key heads, slots of a page, head size); of 8 bits: `place_in`
    values: Any
    pages: Any  # (rows, pages of a row), int32
    cos: Any  # (tables, positions, turned dimensions / 2), float32
    sin: Any


class AttentionScratch:
    """Memory between the programs that attend to chunks and the one that adds up their results, for
    one pass at a time.

    num_rows: the number of rows of all tiles and chunks together.
    """

    def __init__(self, weights: Weights, num_rows: int, num_programs: int) -> None:
        device, size = weights.head.device, int(triton.next_power_of_2(weights.form.head_size))
        self._sizes = num_rows, num_programs
        self.parts = torch.empty(num_rows * size, dtype=torch.float32, device=device)
        self.stats = torch.empty(2 * num_rows, dtype=torch.float32, device=device)
        self.done = torch.zeros(num_programs, dtype=torch.int32, device=device)

    @classmethod
    def shared(cls, weights: Weights, longest: int) -> AttentionScratch:
        """Make scratch memory for passes of all shapes with texts up to this length, within a share
        of the device's memory."""
        device, most = weights.head.device, MOST_OF_ROUND
        widest = PassShape(most, most, most, 1, num_chunks(longest), branch_width=1)
        num_rows, num_programs = cls._needed(weights, widest)
        if device.type == "cuda":
            size = 4 * int(triton.next_power_of_2(weights.form.head_size)) + 8  # bytes of a row
            share = torch.cuda.get_device_properties(device).total_memory // ARENA
            num_rows = min(num_rows, max(1, share // size))
        programs = MOST_TOKENS * weights.form.num_key_heads
        return cls(weights, num_rows, max(num_programs, programs))

    def has_room(self, weights: Weights, shape: PassShape) -> bool:
        return all(map(ge, self._sizes, self._needed(weights, shape)))

    @staticmethod
    def _needed(weights: Weights, shape: PassShape) -> tuple[int, int]:
        """The numbers of rows and counters that a pass needs."""
        programs = weights.form.num_key_heads * shape.num_segments
        is_cut = shape.num_chunks > 1 and not shape.is_whole
        rows = programs * shape.num_chunks * per_tile(weights, shape.per_segment) if is_cut else 1
        return rows, programs


def per_tile(weights: Weights, per_segment: int) -> int:
    """The rows of a tile of attention: the queries of a segment that share a key head, padded."""
    return padded_segment(weights, per_segment) * int(triton.next_power_of_2(weights.form.group))


def padded_segment(weights: Weights, per_segment: int) -> int:
    fewest = max(1, FEWEST_ROWS // triton.next_power_of_2(weights.form.group))
    return int(max(fewest, triton.next_power_of_2(per_segment)))


def queue_attention(
    w: Weights,
    number: int,
    shape: PassShape,
    inputs: Inputs,
    cache: Cache,
    queries: Any,  # (M, heads * head size)
    mixed: Any,  # like queries
    scratch: AttentionScratch | None,
    *,
    is_tight: bool,
    pdl: dict[str, Any],
) -> None:
    """Queue the attention of a layer, which writes the averages of the values to `mixed`.

    scratch: memory for the results of chunks; None if no text is cut into chunks.
    is_tight: whether programs have little shared memory for heads of this size.
    """
    form, pages = w.form, cache.pages
    keys, values = cache.keys[number], cache.values[number]
    sinks, window = w.layers[number].sinks, form.layers[number].window or 0
    sizes = {"H": form.num_heads, "KV": form.num_key_heads, "G": form.group,
             "GP": triton.next_power_of_2(form.group),
             "HD": form.head_size, "HP": triton.next_power_of_2(form.head_size),
             "MQ": padded_segment(w, shape.per_segment), "CHUNK": shapes.CHUNK,
             "SINKS": sinks is not None, "WINDOW": window > 0, **pdl}  # fmt: skip
    kinds = {"BLOCK": min(BLOCK_KEYS, shapes.CHUNK * keys.element_size() // 2),
             "CAPPED": form.attention_cap > 0, "TREE": shape.branch_width > 0,
             **sizes}  # fmt: skip
    warps = WARPS
    if shape.num_segments >= MANY_SEGMENTS and per_tile(w, shape.per_segment) <= FEWEST_ROWS:
        warps //= 2  # the smallest tiles, of which many share a processor
    if shape.is_whole or scratch is None:
        attend_whole[(form.num_key_heads, shape.num_segments)](
            queries, keys, values, mixed, inputs.rows, inputs.positions,
            inputs.before, inputs.branches, inputs.segments, sinks, pages, pages.shape[1],
            form.attention_scale, form.attention_cap, shape.branch_width, window,
            num_warps=warps, num_stages=WHOLE_STAGES, **kinds,
        )  # fmt: skip
        return
    chunks = shape.num_chunks
    if window:  # chunks that the keys of a segment may lie in
        chunks = min(chunks, (window + shape.per_segment - 2) // shapes.CHUNK + 2)
    attend[(form.num_key_heads, chunks, shape.num_segments)](
        queries, keys, values, mixed, scratch.parts, scratch.stats,
        scratch.done, inputs.rows, inputs.positions, inputs.before, inputs.branches,
        inputs.segments, sinks, pages, pages.shape[1], form.attention_scale,
        form.attention_cap, shape.branch_width, window, ADDS=chunks < ADDED_LATER,
        num_warps=warps, num_stages=WHOLE_STAGES if is_tight else STAGES, **kinds,
    )  # fmt: skip
    if chunks >= ADDED_LATER:
        columns = min(ADDING_COLUMNS, sizes["GP"] * sizes["HP"])
        programs = form.num_key_heads * sizes["GP"] * sizes["HP"] // columns
        add_chunks[programs, shape.per_segment, shape.num_segments](
            scratch.parts, scratch.stats, mixed, inputs.positions, inputs.segments,
            sinks, chunks, window, COLUMNS=columns, AHEAD=AHEAD,
            num_warps=max(1, columns // WARP), **sizes,
        )  # fmt: skip
