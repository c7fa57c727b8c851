"""Copies the matrices of a model into one piece of memory, panel by panel.

Weights come as float32, of which `storage` finds the format, or as they lie in a file, whose bytes
are packed by several threads.  What has been copied is freed at once, so beside the panels hardly
more than one matrix is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain
from forerun.lean.blocks import Raw, pack_rows, panel_bytes
from forerun.lean.crew import usual_threads
from forerun.lean.formats import Format
from forerun.lean.linear import FIRST_OF_LIMBS, K_FORMATS, Bytes, Floats, Matrices
from forerun.lean.shape import LANES
from forerun.lean.storage import padded, store

PIECE = 4 << 20  # bytes that a thread reads at a time

Write = Callable[[Bytes, NDArray[np.int64]], None]
"""A function that writes panels into memory at these places."""


class Part(NamedTuple):
    """One matrix of the pass: linear layers with the same inputs, one below the other."""

    pieces: Sequence[Floats | Raw]  # (outputs, in) each
    biases: Sequence[Floats]  # (outputs,) each
    takes_turns: bool = False  # a panel of the first piece and one of the second, and so on


class _Lot(NamedTuple):
    """Some panels of one piece, with the function that writes them."""

    format: Format
    panels: NDArray[np.int64]  # their numbers
    write: list[Write]  # one, which is taken out when it is done


def join(parts: Iterable[Part], *, is_coarse: bool = False) -> Matrices:
    """Copy matrices and biases into one piece of memory.

    is_coarse: activations may be multiplied with one byte of precision instead of three
    (see `limbs`); this is ignored if there are K-quants.
    """
    lots: list[_Lot] = []
    biases, depth, takes_limbs = [], [], []
    counts: list[int] = []  # of panels, for each matrix
    for part in map(_cut_at_panels, parts):
        sizes = [padded(piece.shape[0]) // LANES for piece in part.pieces]
        own: list[_Lot] = []
        bias = np.zeros((sum(sizes), LANES), np.float32)
        for number, (piece, values) in enumerate(zip(part.pieces, part.biases, strict=True)):
            numbers = np.arange(sizes[number]) + sum(sizes[:number])
            if part.takes_turns:
                numbers = np.arange(sizes[number]) * len(sizes) + number
            rest = padded(len(values)) - len(values)
            bias[numbers] = np.pad(values, (0, rest)).reshape(-1, LANES)
            own += _lots(piece, sum(counts) + numbers)
        lots += own
        counts.append(sum(sizes))
        biases.append(bias.reshape(-1))
        depth.append(part.pieces[0].shape[1])
        takes_limbs.append(any(lot.format >= FIRST_OF_LIMBS for lot in own))
    formats = np.empty(sum(counts), np.int64)
    for lot in lots:
        formats[lot.panels] = lot.format
    sizes = [
        panel_bytes(Format(format), inputs)
        for format, inputs in zip(formats.tolist(), np.repeat(depth, counts).tolist(), strict=True)
    ]
    panel_at = np.cumsum([0, *sizes])
    panels: Bytes = np.empty(int(panel_at[-1]), np.uint8)
    with ThreadPoolExecutor(usual_threads()) as threads:
        list(threads.map(lambda lot: lot.write.pop()(panels, panel_at[lot.panels]), lots))
    has_k_quants = any(lot.format in K_FORMATS for lot in lots)
    return Matrices(
        panels=panels,
        biases=np.concatenate(biases),
        format=formats,
        panel_at=panel_at,
        depth=np.array(depth, np.int64),
        takes_limbs=np.array(takes_limbs),
        output_at=np.cumsum([0, *map(len, biases[:-1])]),
        has_k_quants=True if has_k_quants else None,
        is_coarse=True if is_coarse and not has_k_quants else None,
    )


def _cut_at_panels(part: Part) -> Part:
    """The part itself if its pieces fill whole panels, otherwise the part with its pieces joined
    into one."""
    if part.takes_turns or not any(piece.shape[0] % LANES for piece in part.pieces[:-1]):
        return part
    whole = np.concatenate([values_of(piece) for piece in part.pieces])
    return Part([whole], [np.concatenate(part.biases)])


def _lots(piece: Floats | Raw, panels: NDArray[np.int64]) -> Iterator[_Lot]:
    """Yield lots that together write a piece into the panels with these numbers."""
    if not isinstance(piece, Raw) or piece.format is None:
        stored = store(values_of(piece))
        yield _Lot(stored.format, panels, [_copier(stored.panels)])
        return
    step = len(panels) if piece.heads else max(1, PIECE // (LANES * piece.row_bytes))
    for begin in range(0, len(panels), step):
        yield _Lot(piece.format, panels[begin : begin + step], [_writer(piece, begin * LANES)])


def values_of(piece: Floats | Raw) -> Floats:
    """A matrix as float32; InputError if the numbers of a file are not all finite."""
    if not isinstance(piece, Raw):
        return piece
    values = piece.values(0, piece.shape[0])
    if not np.isfinite(values).all():
        raise damaged(piece)
    return values


def _copier(panels: Bytes) -> Write:
    def write(out: Bytes, places: NDArray[np.int64]) -> None:
        size = panels.shape[1]
        for panel, at in zip(panels, places.tolist(), strict=True):
            out[at : at + size] = panel

    return write


def _writer(piece: Raw, begin: int) -> Write:
    def write(out: Bytes, places: NDArray[np.int64]) -> None:
        end = min(begin + LANES * len(places), piece.shape[0])
        if not pack_rows(piece.read(begin, end), piece.type, out, places):
            raise damaged(piece)

    return write


def damaged(piece: Raw) -> InputError:
    wrong = "The weights of the model are damaged: some are not finite."
    cure = "Download the file again, or convert the model anew."
    return InputError(explain(wrong, f"{piece.name} in {piece.file!r}", cure))
