"""Drafters of ours as EAGLE-3 heads: read back, and as other engines read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle3_reference import Head
from safetensors.torch import load_file
from tiny_heads import save_drafter, tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.cli import main
from forerun.drafters import Heads
from forerun.drafters.heads.eagle3 import Published, load
from forerun.drafters.heads.eagle3_export import LAYOUTS, export
from forerun.drafters.heads.fitting import fit
from forerun.drafters.heads.readings import settle
from forerun.measure.exports import _head_folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_read_back_bit_for_bit(layout, tmp_path):
    trained = save_drafter(tmp_path / "ours", tiny_llama())
    export(trained, tmp_path / "theirs", layout, "float32")
    published = load(tmp_path / "theirs")
    np.testing.assert_array_equal(published.tokens, trained.tokens)
    assert published.weights.keys() == trained.weights.keys()
    for name, values in trained.weights.items():
        np.testing.assert_array_equal(published.weights[name], values)
    target = fr.wrap(tiny_llama())
    head, reading = settle(published, target)
    assert reading == ""
    assert head.design.layers == trained.design.layers
    assert head.design.is_usual
    np.testing.assert_allclose(head.design.frequencies, trained.design.rotation()[0], rtol=1e-6)


def test_the_function_is_that_of_the_reference(tmp_path):
    """The exported tensors in the plain implementation, against our runner of what was trained."""
    trained = save_drafter(tmp_path / "ours", tiny_llama())
    export(trained, tmp_path / "theirs", "eagle3", "float32")
    about = json.loads((tmp_path / "theirs" / "config.json").read_text())
    head = Head(fc_norm=True, layers=list(trained.design.layers))
    head.config |= {name: about[name] for name in head.config if name in about}
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    head.tensors = {name.replace("midlayer.", "layers.0."): v for name, v in stored.items()}
    head.ids = stored["d2t"] + torch.arange(len(stored["d2t"]))
    assert torch.equal(stored["t2d"].nonzero()[:, 0], head.ids)
    torch.manual_seed(0)
    states, tokens = torch.randn(9, trained.design.num_features), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    embedding = tiny_llama().get_input_embeddings().weight.detach()
    expected = head.steps(states, tokens, embedding, 4)
    runner = fit(trained, fr.wrap(tiny_llama()))
    state = runner.start(1, 20)
    found = [runner.extend(state, [0], [states], [tokens[1:]])[0]]
    for step in range(4):
        guess = int(trained.tokens[found[-1].argmax()])
        found.append(runner.step(state, [0], [step - 1], [guess])[0])
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs.numpy()).max() <= 1e-5 * theirs.abs().max()


def test_layers_are_counted_as_each_engine_counts(tmp_path):
    """vLLM reads the numbers at the top first; SGLang those inside, and adds one."""
    trained = save_drafter(tmp_path / "ours", tiny_llama())
    export(trained, tmp_path / "flat", "eagle3")
    export(trained, tmp_path / "layered", "speculators")
    flat = json.loads((tmp_path / "flat" / "config.json").read_text())
    layered = json.loads((tmp_path / "layered" / "config.json").read_text())
    layers = list(trained.design.layers)
    assert flat["eagle_aux_hidden_state_layer_ids"] == layers
    assert layered["eagle_aux_hidden_state_layer_ids"] == layers
    inside = flat["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert [each + 1 for each in inside] == layers
    for about in (flat, layered["transformer_layer_config"]):
        assert about["num_aux_hidden_states"] == len(layers)
    assert layered["norm_before_residual"] is False


def test_the_command_and_its_refusals(tmp_path, capsys):
    save_drafter(tmp_path / "ours", tiny_llama())
    out = tmp_path / "head"
    command = ["export", f"heads:{tmp_path / 'ours'}", "--format", "eagle3", "--out", str(out)]
    assert main(command) == 0
    assert "in the layout eagle3" in capsys.readouterr().out
    assert load_file(out / "model.safetensors")["fc.weight"].dtype is torch.bfloat16
    assert main(["export", str(out), "--format", "eagle3", "--out", str(tmp_path / "x")]) != 0
    assert "an EAGLE-3 draft model, and not a drafter that Forerun" in capsys.readouterr().err
    drafter = Heads(out)
    assert isinstance(drafter.source, Published)
    assert _head_folder(drafter) == (str(out), [])
    with pytest.raises(InputError, match="no such layout"):
        export(load_ours(tmp_path), out, "eagle4")
    trained, _ = settle(load(out), fr.wrap(tiny_llama()))
    with pytest.raises(UnsupportedError, match="Only drafters that `forerun train` made"):
        export(trained, tmp_path / "again", "eagle3")


def test_a_target_beside_the_drafter_keeps_its_config(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    trained = save_drafter(tmp_path, tiny_llama())
    with pytest.raises(InputError, match=r"config\.json would be lost"):
        export(trained, tmp_path, "eagle3")


def load_ours(tmp_path: Path) -> Any:
    from forerun.drafters.heads.files import load

    return load(tmp_path / "ours")
