"""Finds damage in a model's folder, and names the file or weight in the error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forerun.base.errors import ForerunError, InputError, MissingExtraError, explain
from forerun.drafters.heads.mtp_layouts import belonging
from forerun.loading import hub

CURE = (
    "Its files are damaged, or do not belong together: save or download the model again, and see "
    "that its config.json is the one of its weights."
)
LAYER = re.compile(r"^model\.layers\.(\d+)\.")
"""Matches the names of layer weights in most decoders."""


def config_of(folder: Path) -> Mapping[str, Any]:
    """The contents of config.json, after checking that the folder's other descriptions can be read
    too."""
    config = object_in(folder / "config.json")
    generation = object_in(folder / "generation_config.json")
    for name, about in (("config.json", config), ("generation_config.json", generation)):
        ends = about.get("eos_token_id")
        listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if not all(type(token) is int for token in listed):
            raise _damaged(folder / name, f"eos_token_id is {ends!r:.80} and no token id")
    return config


def check_files(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse files of weights that cannot be read, or have fewer layers than config.json says."""
    from safetensors import SafetensorError, safe_open

    found = []
    shards = shards_of(folder)
    for file in sorted({folder / "model.safetensors", *(folder / shard for shard in shards)}):
        if not file.exists() and not file.is_symlink():
            continue
        if not file.is_file():
            raise _damaged(file, "it is no file, or a link that leads to none")
        try:
            with safe_open(file, "np") as weights:
                found += [int(layer[1]) for name in weights.keys() if (layer := LAYER.match(name))]  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise _damaged(file, first_sentence(error)) from error
    told = config.get("num_hidden_layers")
    if found and isinstance(told, int) and told > max(found) + 1:
        raise _damaged(
            folder / "config.json", f"num_hidden_layers is {told}; its files have {max(found) + 1}"
        )


def check_complete(name: str, read: Mapping[str, Any], *, may_leave_out: bool) -> None:
    """Refuse a model if some weights were missing from its files (they would be random), or if some
    of its layers would be left out."""
    mismatched = (entry[0] for entry in read.get("mismatched_keys", ()))
    absent = sorted({*read.get("missing_keys", ()), *mismatched})
    if absent:
        wrong = f"Weights that the model needs are not in its files ({_some(absent)})."
        raise InputError(explain(wrong, repr(name), CURE))
    unexpected = {*read.get("unexpected_keys", ())}
    left = sorted(key for key in unexpected - belonging(unexpected) if LAYER.match(key))
    if left and not may_leave_out:
        wrong = f"Its files have layers that config.json leaves out ({_some(left)})."
        raise InputError(explain(wrong, repr(name), CURE))


def check_finite(name: str, model: Any) -> None:
    """Refuse a model with NaN or infinite weights, because they would affect every text."""
    for weight, values in model.named_parameters():
        if values.is_meta or not values.is_floating_point() or values.element_size() < 2:
            continue
        if not values.sum().isfinite() and not values.isfinite().all():
            wrong = f"The weight {weight} holds NaN or infinity."
            raise InputError(explain(wrong, repr(name), CURE))


@contextmanager
def told_by_name(
    name: str, place: Path, refuse_option: Callable[[TypeError], None]
) -> Iterator[None]:
    """Turn the loader's errors into ours, which name the model and say what to do."""
    import torch
    from safetensors import SafetensorError

    try:
        yield
    except (ForerunError, torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except ImportError as error:
        raise _missing_library(name, error) from error
    except (OSError, ValueError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            wrong, cure = "The model brings code, which is not run unasked.", "Read it first; "
            cure += "then pass trust_remote_code=True to forerun.load."
            raise InputError(explain(wrong, repr(name), cure)) from error
        raise not_loaded(name, f"the loader says: {first_sentence(error)}", place) from error
    except Exception as error:
        if isinstance(error, TypeError):
            refuse_option(error)
        wrong = f"The loader failed: {type(error).__name__}: {first_sentence(error)}"
        raise InputError(explain(wrong, repr(name), CURE)) from error


def not_loaded(name: str, reason: str, place: Path) -> InputError:
    wrong = f"No causal language model could be loaded: {reason}"
    cure = (
        "Check the spelling and the connection; a folder must hold config.json and weights."
        f"{hub.without_hub(name)}"
    )
    return InputError(explain(wrong, repr(name), CURE if place.is_dir() else cure))


def first_sentence(error: Exception) -> str:
    """The first line of an error's message; if that ends with a colon, the first sentence."""
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0].rstrip()
    if line.endswith(":"):
        line = re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0].rstrip(":")
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _missing_library(name: str, error: ImportError) -> MissingExtraError:
    """The error for a library that the checkpoint needs, most often for its few-bit weights."""
    found = re.search(r"pip install [^`)]*[^`). ]", str(error))
    command = found[0] if found else f"pip install {error.name or 'the library'}"
    wrong = f"The model needs a library that is missing: {first_sentence(error)}"
    cure = f"Install it with: {command}"
    return MissingExtraError(explain(wrong, repr(name), cure))


def shards_of(folder: Path) -> set[str]:
    """The files of weights that the index names. Raises if some are missing or lie outside the
    folder."""
    file = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not file.exists():
        return set()
    places = object_in(file).get("weight_map")
    if not isinstance(places, dict):
        raise _damaged(file, "it has no object weight_map")
    for weight, shard in places.items():
        is_name = isinstance(shard, str) and Path(shard).name == shard
        if not is_name or shard == file.name or not (folder / shard).is_file():
            raise _damaged(file, f"{weight} is in {shard!r:.80}, which is no file beside it")
    return set(places.values())


def object_in(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no file."""
    try:
        if not file.is_symlink() and not file.exists():
            return {}
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, first_sentence(error).rstrip(".")) from error
    if not isinstance(found, dict):
        raise _damaged(file, f"it holds a {type(found).__name__} and no object")
    return found


def _damaged(file: Path, reason: str) -> InputError:
    return InputError(
        explain(f"{file.name} is damaged: {reason.rstrip('.')}.", repr(str(file)), CURE)
    )


def _some(names: list[str]) -> str:
    return f"{len(names)}: {', '.join(names[:3])}{', ...' * (len(names) > 3)}"
