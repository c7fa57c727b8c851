"""GGUF files on the lean CPU pass: packed from the file at every start.

What is kept is small: tokenizer, norms, where each tensor lies, and whether the pass reproduces
transformers.  That is tried out at the first start, on a few layers of a large file.  The note is
believed as long as the file is the one that it was made of; the weights themselves are always the
file's.  From the second start on torch is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from forerun.base.errors import ForerunError, InputError, explain, notice, warn
from forerun.gguf.magic import key_of, parts_beside
from forerun.lean.blocks import Raw
from forerun.lean.from_files import Description, with_weights
from forerun.lean.model import LeanModel
from forerun.loading import light_tokenizer, packed_files
from forerun.loading.light_tokenizer import KeptTokenizer, LightTokenizer

if TYPE_CHECKING:
    from forerun.gguf.model import GgufModel

LARGE = 50_000_000  # bytes: of more a part is tried out, and it is told that this takes long
WORDS = 1000  # of the vocabulary, in that part


class Note(NamedTuple):
    """What is kept of a file."""

    about: Description
    tokenizer: KeptTokenizer
    tensors: Mapping[str, Sequence[Any]]  # by name, the fields of `Raw` with the number of a file
    is_reproduced: bool  # the pass scored like transformers


def load(source: Path, name: str, convert: Callable[[], Path | None]) -> LeanModel | None:
    """The model in a file; None if the lean pass does not compute it or does not reproduce it.

    convert: makes a folder for transformers, where that is asked for.
    """
    paths = parts_beside(source)
    key, before = key_of(paths), _stamps(paths)
    note = packed_files.read(key, "gguf", Note)
    load_tokenizer = _tokenizer_of(paths[0])
    tokenizer: Any = None
    reason = ""
    if note is None:
        if (made := _described(paths, name)) is None:
            return None
        note, tokenizer = made
        _check_unchanged(source, paths, before)
        reason = packed_files.write(key, "gguf", note)
    if not note.is_reproduced:
        warn(f"{name} is converted: read as it is, it gives other logits than in transformers.")
        return None
    packed = with_weights(note.about, _raws(note.tensors, paths))
    _check_unchanged(source, paths, before)
    if reason and _size(paths) > LARGE:
        notice(f"{name} is tried out at every start, because {reason}")
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

    return LeanModel.from_packed(packed, name, tokenizer, load_plain)


def _described(paths: Sequence[Path], name: str) -> tuple[Note, Any] | None:
    """What is to be kept of a file, and its tokenizer; None if the lean pass does not fit it."""
    from forerun.gguf.model import read_model
    from forerun.lean.weights import SERVED, described
    from forerun.models.families import why_unserved
    from forerun.models.no_warnings import no_warnings

    model = read_model(paths[0])
    plain = model.with_small_weights()
    if why_unserved(plain, SERVED):
        return None
    layers: Sequence[int] = range(model.config.num_hidden_layers)
    num_words = model.config.vocab_size
    if _size(paths) > LARGE:
        notice(f"reading {name} and compiling code for this CPU, once")
        layers, num_words = _layers_of_all_kinds(model), min(WORDS, num_words)
    try:
        is_reproduced = _is_reproduced(model.cut(layers, num_words), paths)
    except ForerunError:  # about the file
        raise
    except Exception as error:  # of the compiler on a processor it does not know, or no memory
        warn(f"The lean CPU pass is not used: {error}", UserWarning)
        return None
    with no_warnings():
        kept = light_tokenizer.of(model.tokenizer)
    return Note(described(plain), kept, _places(model, paths), is_reproduced), model.tokenizer


def _layers_of_all_kinds(model: GgufModel) -> Sequence[int]:
    """The first two layers, and the first of every kind of attention and type of tensor."""
    from forerun.gguf.model import layer_of

    attentions = enumerate(getattr(model.config, "layer_types", None) or ())
    found: set[tuple[str, int | None]] = {(kind, number) for number, kind in attentions}
    found |= {(tensor.kind.name, layer_of(name)[0]) for name, tensor in model.tensors.items()}
    layers = sorted((number, kind) for kind, number in found if number is not None)
    firsts = {kind: number for number, kind in reversed(layers)}
    return sorted({*range(model.config.num_hidden_layers)[:2], *firsts.values()})


def _is_reproduced(model: GgufModel, paths: Sequence[Path]) -> bool:
    """Whether the pass, reading tensors from the file, scores like transformers."""
    from forerun.lean.weights import described
    from forerun.loading.cpu_pass import reproduces

    plain = model.with_weights()
    packed = with_weights(described(plain), _raws(_places(model, paths), paths))
    return reproduces(LeanModel.from_packed(packed, "", None, lambda: plain), plain)


def _places(model: GgufModel, paths: Sequence[Path]) -> dict[str, Sequence[Any]]:
    """Where the matrices of a model lie, as `Note` has it."""
    numbers = {path: number for number, path in enumerate(paths)}
    return {
        name: (
            tensor.kind.name,
            tensor.shape,
            numbers[tensor.path],
            tensor.begin,
            model.num_turned_heads(name),
        )
        for name, tensor in model.tensors.items()
        if len(tensor.shape) == 2
    }


def _raws(tensors: Mapping[str, Sequence[Any]], paths: Sequence[Path]) -> dict[str, Raw]:
    return {
        name: Raw(name, kind, tuple(shape), str(paths[number]), *rest)
        for name, (kind, shape, number, *rest) in tensors.items()
    }


def _tokenizer_of(source: Path) -> Callable[[], Any]:
    def load() -> Any:
        from forerun.gguf.model import read_model

        return read_model(source).tokenizer

    return load


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _check_unchanged(source: Path, paths: Sequence[Path], before: list[tuple[int, ...]]) -> None:
    if _stamps(paths) != before:
        wrong = "The GGUF file changed while it was read."
        raise InputError(explain(wrong, repr(str(source)), "Load it again once it is whole."))


def _stamps(paths: Sequence[Path]) -> list[tuple[int, ...]]:
    """Size, times and inode of each file, which change when it is written to."""
    seen = map(os.stat, paths)
    return [(each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino) for each in seen]
