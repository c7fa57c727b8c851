"""Saves and loads a trained drafter: a folder with a JSON description and 8-bit weights.

Matrices are stored as blocks of 32 8-bit numbers with one float16 scale, as in GGUF's Q8_0. That is
1.06 bytes per weight, and acceptance rates are the same as with float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.drafters.folders import OURS, description_of, find, kind_of, refuse
from forerun.drafters.heads.design import DESIGNS, Design
from forerun.drafters.heads.fingerprint import Fingerprint

FORMAT, VERSION = "forerun-heads", 1
DESCRIPTION, WEIGHTS = OURS
BLOCK = 32


@dataclass(frozen=True)
class Trained:
    """A trained drafter, as it is saved and loaded."""

    design: Design
    target: Fingerprint
    tokens: NDArray[np.int64]  # (Vd,): the target's id of each draft token, ascending
    weights: Mapping[str, NDArray[np.float32]]  # as `Network.state_dict` names them
    embedding: NDArray[np.float32] | None = None  # (V, D), of its own; None: the target's


def save(folder: Path, trained: Trained) -> None:
    """Write the description and the weights. Neither file is ever left incomplete."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Any] = {"tokens": trained.tokens.astype(np.int32)}
    for name, values in trained.weights.items():
        if values.ndim == 1:
            stored[name] = values.astype(np.float32)
        else:
            stored[f"{name}.q8"], stored[f"{name}.scale"] = to_blocks(values)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "kind": trained.design.kind,
        "target": trained.target.to_dict(),
        "design": trained.design.to_dict(),
    }
    unfinished = folder / f"{WEIGHTS}.part"
    save_file(stored, unfinished, metadata={"format": FORMAT})
    unfinished.replace(folder / WEIGHTS)
    unfinished = folder / f"{DESCRIPTION}.part"
    unfinished.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / DESCRIPTION)


def load(place: str | Path) -> Trained:
    """Load a drafter from a folder, or by its name from the Hugging Face hub."""
    folder = find(place)
    kind = kind_of(folder, description_of(folder))
    if kind not in ("forerun", "block", ""):
        refuse(folder, kind, "a drafter that Forerun trained")
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        known = description["format"] == FORMAT and description["version"] == VERSION
        stated = f"{description['format']} version {description['version']}"
        of_kind = DESIGNS[description.get("kind", Design.kind)]
        design = of_kind.from_dict(description["design"]) if known else None
        target = Fingerprint.from_dict(description["target"]) if known else None
    except (OSError, ValueError, LookupError, TypeError) as error:
        wrong = f"No drafter could be read: {DESCRIPTION} is missing or broken ({error})."
        cure = "Name a folder that `forerun train` wrote."
        raise InputError(explain(wrong, repr(str(place)), cure)) from error
    if design is None or target is None:
        wrong = f"This drafter was saved in a format other than {FORMAT} version {VERSION}."
        raise InputError(explain(wrong, stated, "Use the version of forerun that saved it."))
    try:
        weights, tokens = _read(folder / WEIGHTS)
        _check_sizes(folder, design, target, weights, tokens)
    except ModuleNotFoundError as error:
        wrong = "A trained drafter needs torch and safetensors."
        cure = 'Install them with: pip install "forerun[hf]"'
        received = f"an environment without {error.name}"
        raise MissingExtraError(explain(wrong, received, cure)) from error
    return Trained(design, target, tokens, weights)


def trained_for(folder: Path) -> Fingerprint | None:
    """The target that the drafter in a folder was trained for, without reading its weights; None if
    this version can read no drafter there."""
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if (description["format"], description["version"]) != (FORMAT, VERSION):
            return None
        return Fingerprint.from_dict(description["target"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def to_blocks(values: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Round numbers (N, M) to q (N, M) with scales (N, ceil(M / 32)), so that value = scale * q."""
    rows, width = values.shape
    padded = np.zeros((rows, -(-width // BLOCK) * BLOCK), np.float32)
    padded[:, :width] = values
    blocks = padded.reshape(rows, -1, BLOCK)
    scale = (np.abs(blocks).max(axis=2) / 127).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale.astype(np.float32))[:, :, None]
    q = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    return np.ascontiguousarray(q.reshape(rows, -1)[:, :width]), scale


def from_blocks(q: NDArray[np.int8], scale: NDArray[np.float16]) -> NDArray[np.float32]:
    """The numbers (N, M) for q (N, M) and the scales of its blocks."""
    widths = np.repeat(scale.astype(np.float32), BLOCK, axis=1)[:, : q.shape[1]]
    return q.astype(np.float32) * widths


def _read(file: Path) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.int64]]:
    """Read a file of weights. Returns the weights in float32, and the draft tokens."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        stored = load_file(file)
        for name, values in stored.items():
            _check_numbers(name, values)
        tokens = stored.pop("tokens").astype(np.int64)
        weights = {}
        for name, values in stored.items():
            if name.endswith(".q8"):
                name = name.removesuffix(".q8")
                weights[name] = from_blocks(values, stored[f"{name}.scale"])
            elif not name.endswith(".scale"):
                weights[name] = values
        return weights, tokens
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        wrong = f"The drafter's weights cannot be read: the file is cut short or broken ({error})."
        cure = "Copy or download the folder again."
        raise InputError(explain(wrong, repr(str(file)), cure)) from error


def _check_numbers(name: str, values: NDArray[Any]) -> None:
    """Refuse NaN, infinity, and numbers of another kind than `save` writes."""
    is_whole = name == "tokens" or name.endswith(".q8")
    if values.dtype.kind != ("i" if is_whole else "f"):
        raise ValueError(f"{name} is stored as {values.dtype.name}")
    if not is_whole and not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity")


def _check_sizes(
    folder: Path,
    design: Design,
    target: Fingerprint,
    weights: Mapping[str, NDArray[np.float32]],
    tokens: NDArray[np.int64],
) -> None:
    """Refuse weights whose sizes differ from the description in the same folder."""
    # A layer has several weights: one that is only stated takes no memory.
    expected = design.shapes if design.num_layers <= len(weights) else {}
    shapes = {name: w.shape for name, w in weights.items()}
    different = sorted(
        name for name in {*expected, *shapes} if expected.get(name) != shapes.get(name)
    )
    is_sorted = bool((np.diff(tokens, prepend=-1) > 0).all())
    fits = len(tokens) == design.num_tokens and is_sorted and tokens[-1] < target.vocab_size
    if different or not fits:
        name = different[0] if different else "tokens"
        wrong = f"The drafter's weights do not fit {DESCRIPTION} beside them: {name} differs."
        received = f"{shapes.get(name, len(tokens))} rather than {expected.get(name, 'as stated')}"
        cure = f"Copy or download {str(folder)!r} again."
        raise InputError(explain(wrong, received, cure))
