"""Stores collected texts on disk in numbered files, and makes batches of them.

A run that is killed loses at most one file.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain


@dataclass(frozen=True)
class Spoken:
    """A conversation: all of its tokens, and which of them are answers to learn from."""

    tokens: NDArray[np.int32]  # (L,)
    is_answer: NDArray[np.bool_]  # (L,)
    group: str = ""  # its task group, if held-out figures are reported by group
    temperature: float = 0.0  # of a held-out answer

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def can_be_drafted(self) -> bool:
        """Whether some answer has a second token, and no answer begins at the first token."""
        later = self.is_answer[1:] & self.is_answer[:-1]
        return bool(later.any()) and not self.is_answer[0]


def write_shard(folder: Path, spoken: Sequence[Spoken]) -> Path:
    """Write the next numbered file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"shard-{len(list_shards(folder)):05d}.npz"
    write(file, spoken)
    return file


def list_shards(folder: Path) -> list[Path]:
    """The numbered files of a folder, in order."""
    return sorted(folder.glob("shard-*.npz"))


def write(file: Path, spoken: Sequence[Spoken]) -> None:
    """Write one file; it appears only when it is complete."""
    tokens = np.concatenate([text.tokens for text in spoken])
    is_small = tokens.size == 0 or tokens.max() < 1 << 16
    unfinished = file.with_suffix(".part")
    with unfinished.open("wb") as out:
        np.savez(
            out,
            tokens=tokens.astype(np.uint16 if is_small else np.int32),
            is_answer=np.packbits(np.concatenate([text.is_answer for text in spoken])),
            lengths=np.array([len(text) for text in spoken], np.int32),
            groups=np.array([text.group for text in spoken]),
            temperatures=np.array([text.temperature for text in spoken], np.float32),
        )
        out.flush()
        os.fsync(out.fileno())
    unfinished.replace(file)


def read(file: Path) -> list[Spoken]:
    """The conversations in one file."""
    try:
        with np.load(file) as stored:
            kept: dict[str, Any] = {name: stored[name] for name in stored.files}
        tokens = kept["tokens"].astype(np.int32)
        is_answer = np.unpackbits(kept["is_answer"], count=len(tokens)).astype(bool)
        cuts = np.cumsum(kept["lengths"])[:-1]
        columns = np.split(tokens, cuts), np.split(is_answer, cuts)
        details = kept["groups"].tolist(), kept["temperatures"].tolist()
        return [Spoken(*fields) for fields in zip(*columns, *details, strict=True)]
    except (OSError, ValueError, LookupError, BadZipFile) as error:
        wrong = f"A file of collected answers cannot be read ({error})."
        cure = "Delete it; what it held is collected again by the same command."
        raise InputError(explain(wrong, repr(str(file)), cure)) from error


def epoch(
    spoken: Sequence[Spoken], batch_tokens: int, seed: int, number: int
) -> list[list[Spoken]]:
    """All texts once, as batches in an order that depends only on `seed` and `number`.

    Texts of similar length share a batch, and among those, texts with prompts of similar length:
    tokens before the first answer of a batch need keys and values, but no outputs.
    """
    shuffled = list(spoken)
    order = random.Random(f"{seed} {number}")
    order.shuffle(shuffled)
    batches = list(_packed(sorted(shuffled, key=_kind), batch_tokens))
    order.shuffle(batches)
    return batches


def _kind(spoken: Spoken) -> tuple[int, int]:
    """The sort key of a text: the length of its prompt in units of 192, then its whole length in
    units of 32."""
    return int(np.argmax(spoken.is_answer)) // 192, -(-len(spoken) // 32)


def _packed(spoken: Sequence[Spoken], batch_tokens: int) -> Iterator[list[Spoken]]:
    batch: list[Spoken] = []
    longest = 0
    for text in spoken:
        longest = max(longest, len(text))
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch, longest = [], len(text)
        batch.append(text)
    if batch:
        yield batch
