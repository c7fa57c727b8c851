"""What the Hugging Face hub says about a name, asked before anything large is imported."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from forerun.loading.bundled import installed_names

PATIENCE = 5.0  # seconds


def why_not(name: str, token: Any = None) -> str | None:
    """Why the hub does not serve the model; None if it does.

    It is asked once: the loader would retry for a minute.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi(token=token).model_info(name, timeout=PATIENCE)
    except HFValidationError:
        return "names on the Hugging Face hub have the form owner/name"
    except RepositoryNotFoundError:
        return "the Hugging Face hub has no model of that name, or shows it only with a token"
    except Exception as error:  # of whichever HTTP library the hub's client uses
        return f"the Hugging Face hub cannot be reached ({type(error).__name__})"
    return None


def is_cached(name: str, cache_dir: Any = None) -> bool:
    """Whether anything of the model was downloaded before."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = "--".join(["models", *name.split("/")])
    return Path(cache_dir or HF_HUB_CACHE).expanduser().joinpath(folder).is_dir()


def without_hub(name: str) -> str:
    """A sentence on the models that are installed here: the one that was probably meant, or all."""
    known = {full.split("/")[-1].lower(): full for full in installed_names()}
    alike = get_close_matches(name.split("/")[-1].lower(), known, 1, cutoff=0.7)
    if alike and known[alike[0]] == name:
        return " Without a revision it is the one that is installed here."
    if alike:
        return f" Did you mean {known[alike[0]]}?"
    return f" Installed here: {', '.join(known.values())}." if known else ""
