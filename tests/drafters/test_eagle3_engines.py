"""Heads of ours as vLLM and SGLang load and compute them, with their own files, on a CPU.

pip download --no-deps vllm==0.32.0 sglang==0.5.23, and unzip both into FOLDER
FORERUN_ENGINES=FOLDER pytest tests/drafters/test_eagle3_engines.py
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine_files import sglang_head, vllm_config, vllm_head, vllm_layers
from safetensors.torch import load_file
from tiny_heads import VOCAB_SIZE, save_drafter, tiny_llama
from transformers import LlamaConfig

import forerun as fr
from forerun.drafters.heads.eagle3_export import export
from forerun.drafters.heads.fitting import fit

ENGINES = Path(os.environ.get("FORERUN_ENGINES", "none"))
NUM_LAYERS, NUM_OWN = 10, 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENGINES.is_dir(), reason="FORERUN_ENGINES names no folder"),
]


@pytest.fixture
def head(tmp_path: Path) -> Any:
    """A random drafter, exported in float32; an input; and our logits after it and four guesses."""
    model = tiny_llama(num_hidden_layers=NUM_LAYERS)
    saved, random = save_drafter(tmp_path / "ours", model), np.random.default_rng(0)
    weights = {
        name: values + np.float32(0.01) * random.normal(size=values.shape).astype(np.float32)
        for name, values in saved.weights.items()
    }
    trained = replace(saved, weights=weights)
    for layout in ("eagle3", "speculators"):
        export(trained, tmp_path / layout, layout, "float32")
    torch.manual_seed(0)
    states = torch.randn(9, trained.design.num_features) * 2
    tokens = torch.randint(VOCAB_SIZE, (10,)).tolist()
    runner = fit(trained, fr.wrap(model))
    rows = runner.start(1, 40)
    logits = [runner.extend(rows, [0], [states], [tokens[1:]])[0]]
    for step in range(NUM_OWN):
        guess = int(trained.tokens[logits[-1].argmax()])
        logits.append(runner.step(rows, [0], [step - 1], [guess])[0])
    embedding = model.get_input_embeddings().weight.detach()
    return SimpleNamespace(
        folder=tmp_path, trained=trained, states=states, text=tokens[1:], logits=logits,
        embedding=embedding,
    )  # fmt: skip


def fill(model: Any, file: Path, embedding: Any) -> None:
    """Load weights by the engine's own code, all but the target's embedding."""
    model.load_weights(list(load_file(file).items()))
    unset = [name for name, weight in model.named_parameters() if weight.isnan().any()]
    assert unset == ["model.embed_tokens.weight"]
    model.model.embed_tokens.weight.data = embedding


def check(engine: str, head: Any, theirs: list[Any]) -> None:
    pairs = zip(head.logits, theirs, strict=True)
    worst = max(float(np.abs(a - b.numpy()).max() / b.abs().max()) for a, b in pairs)
    print(f"{engine}: {worst:.1e}")
    assert worst <= 1e-5


@pytest.mark.parametrize("layout", ["eagle3", "speculators"])
def test_vllm(layout: str, head: Any) -> None:
    vllm, folder = ENGINES / "vllm", head.folder / layout
    config = vllm_config(vllm, folder)
    assert vllm_layers(vllm, config) == head.trained.design.layers
    model = vllm_head(vllm, config, NUM_LAYERS, VOCAB_SIZE)
    fill(model, folder / "model.safetensors", head.embedding)
    assert model.has_own_lm_head
    assert not getattr(model, "has_own_embed_tokens", False)
    found, text = [], list(head.text)
    with torch.no_grad():
        features = model.combine_hidden_states(head.states)
        for _ in range(NUM_OWN + 1):
            hidden, following = model(torch.tensor(text), torch.arange(len(text)), features)
            logits = model.compute_logits(hidden)[-1]
            assert int(logits.isfinite().sum()) == len(head.trained.tokens)
            found.append(logits[torch.from_numpy(head.trained.tokens)])
            text.append(int(logits.argmax()))
            features = torch.cat((features, following[-1:]))
    check(f"vLLM, {layout}", head, found)


def test_sglang(head: Any) -> None:
    folder = head.folder / "eagle3"
    config = LlamaConfig.from_pretrained(folder)
    counted = config.eagle_config["eagle_aux_hidden_state_layer_ids"]
    assert tuple(each + 1 for each in counted) == head.trained.design.layers
    model = sglang_head(ENGINES / "sglang", config)
    fill(model, folder / "model.safetensors", head.embedding)
    ids = model.get_hot_token_id()
    assert (ids.numpy() == head.trained.tokens).all()
    found, text = [], list(head.text)
    batch = SimpleNamespace(mm_input_embeds=None, spec_info=SimpleNamespace())
    batch.forward_mode = SimpleNamespace(is_extend=lambda: False)
    with torch.no_grad():
        pieces = zip(model.model.fc_norm, head.states.chunk(len(counted), -1), strict=True)
        features = model.model.fc(torch.cat([norm(piece) for norm, piece in pieces], -1))
        for step in range(NUM_OWN + 1):
            batch.spec_info.hidden_states = features if step else head.states
            hidden, (following,) = model.model(torch.tensor(text), torch.arange(len(text)), batch)
            found.append(hidden[-1] @ model.lm_head.weight.T)
            text.append(int(ids[found[-1].argmax()]))
            features = torch.cat((features, following[-1:]))
    check("SGLang", head, found)
