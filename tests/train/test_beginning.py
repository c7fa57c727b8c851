"""Training goes on from a drafter: its weights, its draft tokens, and nobody else's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_end_to_end import train
from tiny_heads import save_drafter, tiny_llama
from tiny_training import save_prompts, save_target, some_texts

from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters.heads.design import Design
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.drafters.heads.network import Network
from forerun.train.fit import likeliest_tokens
from forerun.train.run_folder import Beginning

LARGER = 50  # draft tokens; the drafter has 40


@pytest.fixture
def start(tmp_path):
    save_drafter(tmp_path / "drafter", tiny_llama(seed=3))
    return Beginning.named(str(tmp_path / "drafter"))


def test_its_weights_are_taken_over_and_new_tokens_start_from_the_target(start):
    trained, model = start.trained, tiny_llama(seed=3)
    tokens, _ = likeliest_tokens(some_texts(), LARGER, 61, [2], trained.tokens)
    assert set(trained.tokens) < set(tokens)
    assert len(tokens) == LARGER
    theirs = model.get_output_embeddings().weight.detach()[tokens]
    network = Network(replace(trained.design, num_tokens=LARGER)).initialise(theirs)
    start.fill(network, tokens)
    for name, value in network.state_dict().items():
        if name != "head.weight":
            np.testing.assert_array_equal(value.numpy(), trained.weights[name])
    is_old = np.isin(tokens, trained.tokens)
    head = network.head.weight.detach()
    np.testing.assert_array_equal(head[is_old].numpy(), trained.weights["head.weight"])
    assert torch.equal(head[~is_old], theirs[~is_old])


def test_names(start, tmp_path):
    folder = str(tmp_path / "drafter")
    for name in (folder, f"heads:{folder}"):
        assert Beginning.named(name).trained.design == start.trained.design
    assert Beginning.named("heads").trained.target.name.endswith("SmolLM2-135M-Instruct")


def test_another_target_or_other_sizes_are_refused(start):
    model = tiny_llama(seed=3)
    target, design = Fingerprint.of(model, "tiny"), Design.after(model.config, 40)
    start.check(target, design)
    start.check(target, replace(design, num_tokens=LARGER))
    with pytest.raises(UnsupportedError, match="embeddings differ"):
        start.check(Fingerprint.of(tiny_llama(seed=4), "other"), design)
    with pytest.raises(InputError, match="has another mlp_size"):
        start.check(target, replace(design, mlp_size=64))
    with pytest.raises(InputError, match="--draft-vocab 39"):
        start.check(target, replace(design, num_tokens=39))


@pytest.mark.slow
def test_a_drafter_of_another_target_is_refused_before_anything_is_collected(tmp_path, capfd):
    save_drafter(tmp_path / "drafter", tiny_llama(seed=4))
    target = save_target(tmp_path / "target")
    prompts = save_prompts(tmp_path / "prompts.jsonl")
    asked = ("--prompts", prompts, "--start-from", str(tmp_path / "drafter"))
    assert train(target, tmp_path / "out", *asked) == 2
    assert "does not fit" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
