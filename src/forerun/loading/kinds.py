"""Refuses folders without a complete decoder model: draft heads, adapters, encoder-decoders.

They are recognised by `config.json` and file names, before anything large is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forerun.base.errors import MissingExtraError, UnsupportedError, explain
from forerun.drafters.folders import DRAFTERS, in_words, kind_of
from forerun.loading.damage import object_in

Config = Mapping[str, Any]

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
ALONE = "Name the model that it was made for; `forerun train` makes drafters for any target."


def refuse_other_kinds(folder: Path, config: Config) -> None:
    """Refuse a folder that is not a causal language model on its own. The error says what it is."""
    kind = kind_of(folder, config)
    beside = kind == "forerun" and config  # a drafter in the folder of its own target
    if kind not in ("model", "adapter", "gguf", "") and not beside:
        wrong = (
            f"The folder holds {in_words(kind)}: it drafts for another model and answers nothing "
            "itself."
        )
        cure = ALONE
        if kind in DRAFTERS:
            cure = f"Name its target, and this folder as the drafter: {DRAFTERS[kind]}:{folder}."
        raise UnsupportedError(explain(wrong, repr(str(folder)), _base_of(config) or cure))
    if config.get("is_encoder_decoder") is True:
        wrong = "The model is an encoder and a decoder; drafts need a decoder alone."
        received = f"{str(folder)!r}, a {config.get('model_type', 'model without a type')}"
        cure = "Use a causal language model, such as Llama, Qwen or Gemma."
        raise UnsupportedError(explain(wrong, received, cure))


def is_adapter(folder: Path) -> bool:
    """Whether a folder contains an adapter without its base model's weights. It may contain that
    model's config."""
    has_weights = any(any(folder.glob(pattern)) for pattern in WEIGHTS)
    return (folder / "adapter_config.json").is_file() and not has_weights


def check_adapter(folder: Path) -> None:
    """Refuse an adapter that cannot be merged here; the error says what to do."""
    base = object_in(folder / "adapter_config.json").get("base_model_name_or_path")
    if "quantization_config" in object_in(Path(str(base)) / "config.json"):
        wrong = f"The folder holds an adapter (LoRA) for {base}, whose weights have few bits."
        cure = "Merge it into that model in 16 bits, quantise the result, and name its folder."
        raise UnsupportedError(explain(wrong, repr(str(folder)), cure))
    if find_spec("peft") is not None:
        return
    wrong = f"The folder holds an adapter (LoRA) for {base or 'another model'}, and no whole model."
    cure = (
        "Merge it (`PeftModel.merge_and_unload`, then `save_pretrained`) and name that folder; or "
        "run `pip install peft`, with which it is merged when it is loaded."
    )
    raise MissingExtraError(explain(wrong, repr(str(folder)), cure))


def merged(folder: Path, **options: Any) -> Any:
    """The base model of an adapter with the adapter merged into its weights."""
    from peft import AutoPeftModelForCausalLM  # type: ignore[import-not-found, unused-ignore]

    model = AutoPeftModelForCausalLM.from_pretrained(str(folder), **options)
    if not hasattr(model, "merge_and_unload"):
        wrong = "The adapter is of a kind that cannot become part of its model's weights."
        raise UnsupportedError(explain(wrong, repr(str(folder)), "Use a LoRA adapter."))
    return model.merge_and_unload()


def _base_of(config: Config) -> str:
    """A sentence that names the model that draft heads belong to; empty if the files do not say."""
    base = config.get("base_model_name_or_path")
    return f"Name its target, {base!r}; drafters that fit are chosen by themselves." if base else ""
