"""Models for the lean CPU pass, packed from a GGUF file or a folder at every start.

A small note is kept on disk: the tokenizer, the norms, where each tensor lies, and whether the pass
reproduces transformers. The first start tests that, on a few layers if the model is large. The note
is valid until the files change; weights are always read from the files. From the second start on,
torch is not needed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from forerun.base.arrays import HostArray
from forerun.base.errors import ForerunError, InputError, explain, notice, warn
from forerun.gguf.magic import key_of
from forerun.lean.blocks import Raw
from forerun.lean.formats import BLOCK
from forerun.lean.from_files import Description, with_weights
from forerun.lean.model import LeanModel
from forerun.loading import light_tokenizer, notes
from forerun.loading.light_tokenizer import KeptTokenizer, LightTokenizer
from forerun.loading.sources import Source

LARGE = 50_000_000  # bytes; of a larger model only a part is tried out, after a notice
WORDS = 1000  # tokens of the vocabulary in that part
LAYERS = "model.layers."  # and the number: how names of a layer's tensors begin


class FileModel(Protocol):
    """A model in files, with the tensor names and shapes that transformers expects."""

    @property
    def config(self) -> Any: ...
    @property
    def tensors(self) -> Mapping[str, Any]:
        """The tensors by their names in transformers: shape, type, path and begin, in bytes."""

    @property
    def skeleton(self) -> Any:
        """The transformers model without values (on the device "meta")."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; None if there is none."""

    def num_turned_heads(self, name: str) -> int:
        """The number of heads whose rows are in llama.cpp's order, in which the two numbers of a
        rotary pair are neighbours; 0 if rows are in transformers' order, in two halves."""
        ...

    def values(self, name: str) -> HostArray:
        """The values of a tensor as transformers has them; InputError if some are not finite."""
        ...

    def of(self, config: Any, tensors: Any) -> FileModel:
        """The same model with another configuration and the tensors that belong to it."""
        ...


class Note(NamedTuple):
    """The facts about a file that are kept on disk."""

    about: Description
    tokenizer: KeptTokenizer
    tensors: Mapping[str, Sequence[Any]]  # by name, the fields of `Raw` with the number of a file
    is_reproduced: bool  # the pass scored like transformers


def load_packed(source: Source, name: str, *, is_rounded: bool) -> LeanModel | None:
    """Load the model in files, with weights rounded to 8 bits if asked. None if the lean pass does
    not support it or does not reproduce it."""
    key, before = key_of(source.files), _stamps(source.files)
    note = notes.read(key, source.variant, Note)
    tokenizer: Any = None
    reason = ""
    if note is None:
        if (made := _described(source, name)) is None:
            return None
        note, tokenizer = made
        _check_unchanged(source, before)
        reason = notes.write(key, source.variant, note)
    raws = _raws(note.tensors, source.files)
    if not note.is_reproduced:
        warn(f"Read as it is, {name} gives other logits than in transformers, which loads it now.")
        return None
    if is_rounded and any(raw.shape[1] % BLOCK for raw in raws.values()):
        return None  # which loading it in another way refuses
    if tokenizer is None:
        is_light, load_whole = note.tokenizer.words.size > 0, source.load_tokenizer
        tokenizer = LightTokenizer(note.tokenizer, load_whole) if is_light else load_whole()
    about = note.about
    del note
    _give_back()  # what making the tokenizer took, before the weights take more
    packed = with_weights(about, raws, is_rounded=is_rounded)
    _check_unchanged(source, before)
    if reason and _size(source.files) > LARGE:
        notice(f"{name} is tried out at every start, because {reason}")

    def load_plain() -> Any:
        """Load the model with transformers."""
        if _stamps(source.files) != before:
            wrong = "The model's files changed since it was loaded."
            raise InputError(explain(wrong, repr(str(source.place)), "Load the model again."))
        return source.load_plain()

    shown = name + "-int8" * is_rounded
    return LeanModel.from_packed(packed, shown, tokenizer, load_plain)


def _described(source: Source, name: str) -> tuple[Note, Any] | None:
    """The note about a model, and its tokenizer; None if the lean pass does not support it."""
    source.check()
    from forerun.lean.weights import SERVED, described
    from forerun.models.families import why_unserved
    from forerun.models.no_warnings import no_warnings

    is_large = _size(source.files) > LARGE
    if is_large:  # before transformers is imported, which takes seconds too
        notice(f"reading {name} and compiling code for this CPU, once; that may take a minute")
    model: FileModel | None = source.read()
    if model is None:
        return None
    vectors = [name for name, tensor in model.tensors.items() if len(tensor.shape) == 1]
    plain = _filled(model, vectors)
    if why_unserved(plain, SERVED):
        return None
    layers: Sequence[int] = range(model.config.num_hidden_layers)
    num_words = model.config.vocab_size
    if is_large:
        layers, num_words = _layers_of_all_kinds(model), min(WORDS, num_words)
    try:
        is_reproduced = _is_reproduced(_cut(model, layers, num_words), source.files)
    except ForerunError:  # about the files
        raise
    except Exception as error:  # of the compiler on a processor it does not know, or no memory
        warn(f"The lean CPU pass is not used: {error}", UserWarning)
        return None
    with no_warnings():
        kept = light_tokenizer.of(model.tokenizer)
    places = _places(model, source.files)
    return Note(described(plain), kept, places, is_reproduced), model.tokenizer


def _layers_of_all_kinds(model: FileModel) -> Sequence[int]:
    """The layers to test: the first two, and the first of each kind of attention and type of
    tensor."""
    lists = _by_layer(model).values()
    kinds = enumerate(map(repr, zip(*lists, strict=True)))
    found: set[tuple[str, int | None]] = {(kind, number) for number, kind in kinds}
    found |= {(tensor.type, _layer_of(name)[0]) for name, tensor in model.tensors.items()}
    layers = sorted((number, kind) for kind, number in found if number is not None)
    firsts = {kind: number for number, kind in reversed(layers)}
    return sorted({*range(model.config.num_hidden_layers)[:2], *firsts.values()})


def _is_reproduced(model: FileModel, paths: Sequence[Path]) -> bool:
    """Whether the pass, reading tensors from the files, scores like transformers."""
    from forerun.lean.weights import described
    from forerun.loading.cpu_pass import reproduces

    plain = _filled(model, model.tensors)
    plain.tie_weights()
    embedding = plain.get_input_embeddings()
    if hasattr(embedding, "scalar_embed_scale"):  # a number that files do not have
        import torch

        embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
    packed = with_weights(described(plain), _raws(_places(model, paths), paths))
    return reproduces(LeanModel.from_packed(packed, "", None, lambda: plain), plain)


def _filled(model: FileModel, names: Iterable[str]) -> Any:
    """The skeleton with the named weights and the rotary tables loaded."""
    import torch

    plain = model.skeleton
    for name in names:
        owner = plain.get_submodule(name.rpartition(".")[0])
        values = torch.from_numpy(model.values(name).copy())
        setattr(owner, name.rpartition(".")[2], torch.nn.Parameter(values, requires_grad=False))
    rotary = plain.model.rotary_emb
    plain.model.rotary_emb = type(rotary)(config=model.config)
    return plain.eval()


def _cut(model: FileModel, layers: Sequence[int], num_words: int) -> FileModel:
    """The model cut down to some layers and to the first words of the vocabulary."""
    told = model.config.to_dict() | {"num_hidden_layers": len(layers), "vocab_size": num_words}
    told |= {name: [own[layer] for layer in layers] for name, own in _by_layer(model).items()}
    told |= {f"{role}_token_id": None for role in ("bos", "eos", "pad")}
    tensors: dict[str, Any] = {}
    for name, tensor in model.tensors.items():
        number, rest = _layer_of(name)
        if number is None:
            shape = (num_words, *tensor.shape[1:]) if len(tensor.shape) == 2 else tensor.shape
            tensors[name] = tensor._replace(shape=shape)
        elif number in layers:
            tensors[f"{LAYERS}{layers.index(number)}.{rest}"] = tensor
    return model.of(type(model.config).from_dict(told), tensors)


def _by_layer(model: FileModel) -> dict[str, list[Any]]:
    """The lists in a configuration that have one entry for each layer."""
    told, count = model.config.to_dict(), model.config.num_hidden_layers
    return {k: own for k, own in told.items() if isinstance(own, list) and len(own) == count}


def _layer_of(name: str) -> tuple[int | None, str]:
    """The layer number of a tensor, and its name within the layer; the number is None outside of
    layers."""
    if not name.startswith(LAYERS):
        return None, name
    number, _, rest = name.removeprefix(LAYERS).partition(".")
    return int(number), rest


def _places(model: FileModel, paths: Sequence[Path]) -> dict[str, Sequence[Any]]:
    """Where each matrix of a model lies in its files, in the form that `Note` stores."""
    numbers = {path: number for number, path in enumerate(paths)}
    return {
        name: (
            tensor.type,
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


def _give_back() -> None:
    """Return freed memory to the system, where the C library has a call for that."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # musl has none
            ctypes.CDLL(None).malloc_trim(0)


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _check_unchanged(source: Source, before: list[tuple[int, ...]]) -> None:
    if _stamps(source.files) != before:
        wrong = "A file of the model changed while it was read."
        cure = "Load it again once it is whole."
        raise InputError(explain(wrong, repr(str(source.place)), cure))


def _stamps(paths: Sequence[Path]) -> list[tuple[int, ...]]:
    """The size, times and inode of each file, to notice when one is changed."""
    seen = map(os.stat, paths)
    return [(each.st_size, each.st_mtime_ns, each.st_ctime_ns, each.st_ino) for each in seen]
