"""Recognises which kind of drafter a folder holds, and reads the tensors of published ones.

The kind is found from config.json and the file names, before anything large is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from forerun.base.errors import InputError, MissingExtraError, UnsupportedError, explain

OURS = ("heads.json", "heads.safetensors")
PUBLISHED = "config.json"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "medusa_lm_head.pt")
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")

KINDS = {
    "forerun": "a drafter that Forerun trained",
    "block": "a block drafter that Forerun trained",
    "eagle3": "an EAGLE-3 draft model",
    "eagle": "an EAGLE draft model of the first or second generation",
    "peagle": "a P-EAGLE draft model, which guesses several tokens in one pass",
    "dflash": "a DFlash draft model",
    "dflash2": "a DFlash2 draft model",
    "dspark": "a DSpark draft model",
    "xpress": "an XPress draft model",
    "mtp": "the MTP layers of a model",
    "medusa": "Medusa heads",
    "mlp_speculator": "an MLP speculator",
    "adapter": "an adapter (LoRA)",
    "gguf": "a GGUF file",
    "model": "a whole model",
}
"""The kinds of content that a folder may have, each in words."""

DRAFTERS = {
    "forerun": "heads", "block": "block", "eagle3": "eagle3", "dflash": "dflash",
    "dflash2": "dflash", "medusa": "medusa", "mtp": "mtp",
}  # fmt: skip
"""The drafter (by its name in `drafters/registry.py`) that reads each kind of folder that can draft
here."""


def find(place: str | Path) -> Path:
    """The folder of a drafter: `place` itself, or a downloaded copy of a Hugging Face
    repository."""
    if str(place) != "" and Path(place).is_dir():
        return Path(place)
    if not HUB_NAME.fullmatch(str(place)):
        wrong = "There is no such folder, and a drafter on the hub is called owner/name."
        cure = "Name a folder that `forerun train` made, or that of a published drafter."
        raise InputError(explain(wrong, repr(str(place)), cure))
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            description, _ = (hf_hub_download(str(place), name) for name in OURS)
            return Path(description).parent
        except EntryNotFoundError:
            return Path(snapshot_download(str(place), allow_patterns=[PUBLISHED, *WEIGHTS]))
    except Exception as error:  # of whichever HTTP library, or no such name, or no such package
        wrong = "No drafter was found: it was looked for as a folder and on the Hugging Face hub."
        cure = "Check the spelling and the connection, or train one with `forerun train`."
        raise InputError(explain(wrong, repr(str(place)), cure)) from error


def kind_of(folder: Path, config: Mapping[str, Any]) -> str:
    """The kind of drafter in a folder, one of `KINDS`, found from its config.json and file names.
    For a kind that only `speculators` knows, the name used there; "" if the kind is unknown."""
    if any((folder / name).exists() for name in OURS):
        return "block" if _is_block(folder / OURS[0]) else "forerun"
    names = f"{config.get('architectures') or ''} {config.get('model_type') or ''}".lower()
    if "speculators_model_type" in config or "speculators_config" in config:
        return str(config.get("speculators_model_type") or "speculators")
    for kind in ("dflash2", "dflash", "dspark", "xpress", "peagle", "mlp_speculator"):
        if kind.replace("_", "") in names.replace("_", ""):
            return kind
    if "dflash_config" in config:
        return "dflash"
    if "eagle3" in names or "draft_vocab_size" in config:
        return "eagle3"
    if "eagle" in names:
        return "eagle"
    if "mtp" in names or "nextn" in names:
        return "mtp"
    is_medusa = "medusa" in names or {"medusa_num_heads", "medusa_num_layers"} & config.keys()
    if is_medusa or any(folder.glob("medusa_lm_head.*")):
        return "medusa"
    if (folder / "adapter_config.json").is_file():
        return "adapter"
    if "vocab_size" in config or "text_config" in config:
        return "model"
    return "gguf" if any(folder.glob("*.gguf")) else ""


def _is_block(description: Path) -> bool:
    """Whether one of our own description files describes a drafter that guesses in blocks."""
    try:
        found = json.loads(description.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # whoever reads it says what is wrong
        return False
    return isinstance(found, dict) and found.get("kind") == "block"


def in_words(kind: str) -> str:
    """A description, for messages, of what a folder of this kind holds."""
    if kind in KINDS or not kind:
        return KINDS.get(kind, "nothing that is known here")
    return f"a draft model of `speculators`, of a kind that this version does not know ({kind})"


def refuse(folder: Path, kind: str, wanted: str) -> None:
    """Raise an error that says what the folder holds instead of the wanted kind."""
    wrong = f"The folder holds {in_words(kind)}, and not {wanted}."
    name = DRAFTERS.get(kind)
    cure = (
        f"Name it {name}:{folder}."
        if name
        else "Name it as a model: it drafts if its tokens are the target's."
        if kind == "model"
        else f"Use a drafter that Forerun reads: {', '.join(dict.fromkeys(DRAFTERS.values()))}."
    )
    raise UnsupportedError(explain(wrong, repr(str(folder)), cure))


def description_of(folder: Path) -> dict[str, Any]:
    """The contents of a folder's config.json; an empty dictionary if there is no such file."""
    file = folder / PUBLISHED
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        reason = f"it holds a {type(found).__name__} and no object"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    wrong = f"{PUBLISHED} is damaged: {reason}."
    raise InputError(explain(wrong, repr(str(folder)), "Copy or download the folder again."))


def tensors_of(
    folder: Path, choose: Callable[[set[str]], Collection[str]] | None = None
) -> dict[str, NDArray[Any]]:
    """Read the tensors of a published folder: floats as float32, others as they are. From a pickle
    only tensors are read; code in it is never run.

    choose: selects, from the names of all tensors, those to read; None reads all.
    """
    found = stored_in(folder)
    chosen = found if choose is None else choose({*found})
    return {name: _array(found[name]()) for name in chosen}


def stored_in(folder: Path) -> dict[str, Callable[[], Any]]:
    """A function for each tensor of a published folder that reads it, as a torch tensor of its own
    type."""
    try:
        import torch
        from safetensors import safe_open
    except ModuleNotFoundError as error:
        wrong, received = "A published drafter needs torch and safetensors.", f"no {error.name}"
        cure = 'Install them with: pip install "forerun[hf]"'
        raise MissingExtraError(explain(wrong, received, cure)) from error
    files = next((named for kind in WEIGHTS if (named := sorted(folder.glob(kind)))), [])
    if not files:
        wrong = f"The folder has no weights: no {', '.join(WEIGHTS)}."
        raise InputError(explain(wrong, repr(str(folder)), "Copy or download it whole."))
    found: dict[str, Callable[[], Any]] = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                opened = safe_open(file, "pt")
                names: list[str] = opened.keys()  # type: ignore[no-untyped-call]
                found |= {name: partial(opened.get_tensor, name) for name in names}
                continue
            stored = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch and safetensors raise a dozen kinds for broken files
            is_code = "weights_only" in str(error) or "Unsupported" in str(error)
            wrong = (
                f"{file.name} holds more than tensors, and what a pickle would run is not run."
                if is_code and file.suffix != ".safetensors"
                else f"{file.name} cannot be read: it is cut short or broken ({str(error)[:200]})."
            )
            cure = "Convert it to safetensors where you trust it, or download the folder again."
            raise InputError(explain(wrong, repr(str(file)), cure)) from error
        if not isinstance(stored, dict):
            wrong, cure = f"{file.name} holds no tensors by name.", "Save a state_dict in it."
            raise InputError(explain(wrong, f"a {type(stored).__name__}", cure))
        others = [name for name, value in stored.items() if not isinstance(value, torch.Tensor)]
        if others:
            wrong, cure = f"{file.name} holds more than tensors.", "Leave out what is none."
            raise InputError(explain(wrong, f"{others[0]!r} is none", cure))
        found |= {name: partial(stored.get, name) for name in stored}
    return found


def _array(value: Any) -> NDArray[Any]:
    array: NDArray[Any] = (value.float() if value.is_floating_point() else value).numpy()
    return array
