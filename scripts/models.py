"""Makes the tables of docs/models.md from the forms of models and what each pass says it serves.

    python scripts/models.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; all else on the page is written by
hand.  tests/test_models_page.py fails when a table is not what the code gives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.gpu import weights as gpu_weights
from forerun.lean import weights as lean_weights
from forerun.loading.stored_formats import FORMATS
from forerun.models.families import FAMILIES, form_of

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SIZES = {
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "intermediate_size": 64,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "ministral": {"layer_types": ["sliding_attention", "full_attention"] * 4},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
    "phi3": {"sliding_window": None, "pad_token_id": 0},
    "smollm3": {"pad_token_id": 0},
    "seed_oss": {},
    "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 16.0},
    "olmo2": {"pad_token_id": 0},
    "olmo3": {"pad_token_id": 0},
    "gemma2": {},
    "gemma3_text": {},
    "gpt_oss": {},
}
"""By the model type in transformers, what released checkpoints have that its defaults have not."""


def families() -> list[Sequence[str]]:
    """Every family, what it has beyond a Llama, and the passes that serve that."""
    rows: list[Sequence[str]] = [("family", "beyond a Llama", "CPU pass", "GPU pass")]
    for kind, options in OPTIONS.items():
        config = AutoConfig.for_model(kind, **{**SIZES, **options})
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        features = form_of(model).features
        beyond = (features - module.SERVED for module in (lean_weights, gpu_weights))
        served = [f"no: {', '.join(sorted(names))}" if names else "yes" for names in beyond]
        name = FAMILIES[type(model).__name__].name
        rows.append((name, ", ".join(sorted(features)), *served))
    return rows


def formats() -> list[Sequence[str]]:
    """Every format of few bits in a checkpoint, by its name in quantization_config."""
    rows: list[Sequence[str]] = [("quantization_config", "weights", "CPU pass", "GPU pass")]
    for name, what in FORMATS.items():
        rows.append((f"`{name}`", what, "written out", "in their own bits"))
    return rows


TABLES = {"families": families, "formats": formats}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body]) + "\n"


def page(text: str) -> str:
    """The page with every table made anew."""
    return TABLE.sub(lambda found: f"{found[1]}{markdown(TABLES[found[2]]())}{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
