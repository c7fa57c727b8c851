"""GGUF files on the lean CPU pass: packed from the file at every start.

What is kept is small: tokenizer, norms and where each tensor lies.  It is believed as long as the
file is the one that it was made of; the weights themselves are always the file's.  From the second
start on torch is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forerun.base.errors import InputError, explain, notice, warn
from forerun.gguf.magic import key_of, parts_beside
from forerun.lean.blocks import Raw
from forerun.lean.from_files import Description, with_weights
from forerun.lean.model import LeanModel
from forerun.loading import light_tokenizer, packed_files
from forerun.loading.light_tokenizer import KeptTokenizer, LightTokenizer

LARGE = 50_000_000  # bytes from which on it is told that a first start takes long


class Note(NamedTuple):
    """What is kept of a file."""

    about: Description
    tokenizer: KeptTokenizer
    tensors: Mapping[str, Sequence[Any]]  # by name, the fields of `Raw` with the number of a file


def load(source: Path, name: str, convert: Callable[[], Path | None]) -> LeanModel | None:
    """The model in a file; None if the lean pass does not compute it.

    convert: makes a folder for transformers, where that is asked for.
    """
    paths = parts_beside(source)
    key, before = key_of(paths), _stamps(paths)
    note = packed_files.read(key, "gguf", Note)
    load_tokenizer = _tokenizer_of(paths[0])
    tokenizer: Any = None
    is_first = note is None
    if note is None:
        if (made := _described(paths, name)) is None:
            return None
        note, tokenizer = made
    raws = {
        each: Raw(each, kind, tuple(shape), str(paths[number]), *rest)
        for each, (kind, shape, number, *rest) in note.tensors.items()
    }
    packed = with_weights(note.about, raws)
    if _stamps(paths) != before:
        wrong = "The GGUF file changed while it was read."
        raise InputError(explain(wrong, repr(str(source)), "Load it again once it is whole."))
    if tokenizer is None:
        is_light = note.tokenizer.words.size > 0
        tokenizer = LightTokenizer(note.tokenizer, load_tokenizer) if is_light else load_tokenizer()

    def load_plain() -> Any:
        """The transformers model."""
        if _stamps(paths) != before:
            wrong = "The GGUF file changed since it was loaded."
            raise InputError(explain(wrong, repr(str(source)), "Load the model again."))
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(convert(), dtype="float32").eval()

    model = LeanModel.from_packed(packed, name, tokenizer, load_plain)
    if is_first:
        try:
            model.score(model.start(1, 1), [0], [[0]], [1])
        except Exception as error:  # of the compiler on a processor it does not know
            warn(f"The lean CPU pass is not used: {error}", UserWarning)
            return None
        packed_files.write(key, "gguf", note)
    return model


def _described(paths: Sequence[Path], name: str) -> tuple[Note, Any] | None:
    """What is to be kept of a file, and its tokenizer; None if the lean pass does not fit it."""
    from forerun.gguf.model import read_model
    from forerun.lean.weights import described
    from forerun.models.llama_family import why_other_shape
    from forerun.models.no_warnings import no_warnings

    model = read_model(paths[0])
    plain = model.with_small_weights()
    if why_other_shape(plain):
        return None
    if sum(path.stat().st_size for path in paths) > LARGE:
        notice(f"reading {name} and compiling code for this CPU, once")
    numbers = {path: number for number, path in enumerate(paths)}
    tensors = {
        each: (
            tensor.kind.name,
            tensor.shape,
            numbers[tensor.path],
            tensor.begin,
            model.num_turned_heads(each),
        )
        for each, tensor in model.tensors.items()
        if len(tensor.shape) == 2
    }
    with no_warnings():
        kept = light_tokenizer.of(model.tokenizer)
    return Note(described(plain), kept, tensors), model.tokenizer


def _tokenizer_of(source: Path) -> Callable[[], Any]:
    def load() -> Any:
        from forerun.gguf.model import read_model

        return read_model(source).tokenizer

    return load


def _stamps(paths: Sequence[Path]) -> list[tuple[int, ...]]:
    """Size, times and inode of each file, which change when it is written to."""
    seen = map(os.stat, paths)
    return [(each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino) for each in seen]
