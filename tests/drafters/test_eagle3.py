"""Published EAGLE-3 heads: the function of every switch on both runners, and the texts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle3_reference import NUM_LAYERS, SWITCHES, VOCAB, WIDTH, Head, frequencies
from tiny_heads import tiny_llama

import forerun as fr
from forerun.drafters import Heads
from forerun.drafters.heads import readings
from forerun.drafters.heads.eagle3 import load, swapped
from forerun.drafters.heads.fitting import fit
from forerun.testing import check_drafter

NUM_OWN = 4
LINEAR = {"rope_type": "linear", "factor": 4.0}
PROMPTS = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]


@cache
def model() -> Any:
    return tiny_llama(seed=3)


@cache
def lean() -> Any:
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    return LeanModel(tiny_llama(seed=3))


TARGETS = {"plain": lambda: fr.wrap(model()), "lean": lean}


def inputs(head: Head, length: int = 9) -> tuple[Any, list[int]]:
    torch.manual_seed(1)
    width = len(head.layers) * head.config.get("target_hidden_size", WIDTH)
    return torch.randn(length, width) * 2, torch.randint(VOCAB, (length + 1,)).tolist()


def our_steps(folder: Path, target: Any, states: Any, tokens: list[int], cut: int) -> list[Any]:
    """What the reference's `steps` gives, by our runner; the prompt comes in two parts."""
    published = load(folder)
    trained, _ = readings.settle(published, target)
    runner = fit(trained, target)
    state = runner.start(1, 40)
    runner.extend(state, [0], [states[:cut]], [tokens[1 : cut + 1]])
    found = [runner.extend(state, [0], [states[cut:]], [tokens[cut + 1 :]])[0].copy()]
    for step in range(NUM_OWN):
        guess = int(trained.tokens[found[-1].argmax()])
        found.append(runner.step(state, [0], [step - 1], [guess])[0].copy())
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_through_a_prompt_and_four_own_steps(switch, target, tmp_path):
    """Both layouts; the flat one as a pickle."""
    head = Head(**SWITCHES[switch])
    states, tokens = inputs(head)
    embedding = model().get_input_embeddings().weight.detach()
    expected = head.steps(states, tokens, embedding, NUM_OWN)
    layouts = ("flat", "speculators") if "bias" not in head.config else ("flat",)
    for layout in layouts:
        folder = head.save(tmp_path / layout, layout, as_bin=layout == "flat")
        found = our_steps(folder, TARGETS[target](), states, tokens, cut=5)
        for ours, theirs in zip(found, expected, strict=True):
            assert np.abs(ours - theirs.numpy()).max() <= 1e-5 * theirs.abs().max()


def test_the_figures_above_would_show_what_is_wrong(tmp_path, monkeypatch):
    """Swapped halves, features a place too late, and each switch taken as another."""
    plain = Head()
    states, tokens = inputs(plain)
    embedding = model().get_input_embeddings().weight.detach()
    target, expected = fr.wrap(model()), plain.steps(states, tokens, embedding, 0)[0].numpy()

    def error(folder: Path, states: Any = states) -> float:
        found = our_steps(folder, target, states, tokens, cut=5)[0]
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    assert error(plain.save(tmp_path / "right")) < 1e-5
    assert error(tmp_path / "right", torch.roll(states, 1, 0)) > 0.1
    for name in ("fc_norm", "norm_before_fc", "norm_before_residual", "llama3"):
        other = Head(**SWITCHES[name])
        other.tensors |= plain.tensors
        assert error(other.save(tmp_path / name)) > 1e-3, name
    monkeypatch.setattr("forerun.drafters.heads.eagle3.swapped", lambda columns: columns)
    assert error(tmp_path / "right") > 0.1


def test_halves_are_swapped_back(tmp_path):
    columns = np.arange(12).reshape(2, 6)
    np.testing.assert_array_equal(swapped(columns), [[3, 4, 5, 0, 1, 2], [9, 10, 11, 6, 7, 8]])
    np.testing.assert_array_equal(swapped(swapped(columns)), columns)


class Likely(Head):
    """A head that often agrees with the tiny target: it reads the last feature with its head."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        t = self.tensors
        t["fc.weight"] = torch.zeros_like(t["fc.weight"])
        t["fc.weight"][:, -WIDTH:] = torch.eye(WIDTH)
        for name in ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"):
            t[name] *= 0.05
        t["lm_head.weight"] = model().get_output_embeddings().weight.detach()[self.ids].clone()
        t["norm.weight"] = model().model.norm.weight.detach().clone()


@pytest.mark.parametrize(
    ("tree", "target"),
    [
        pytest.param(None, "plain", marks=pytest.mark.slow),
        (None, "lean"),
        (9, "plain"),
        (9, "lean"),
    ],
)
def test_24_texts_are_those_of_plain_decoding(target, tree, tmp_path):
    head = Likely(norm_before_residual=True, norm_output=True, layers=[1, 3, 5])
    drafter = Heads(head.save(tmp_path))
    assert drafter.name == f"eagle3:{tmp_path}"
    prompts = [[1 + i, 9, 3 + i % 5, 7] for i in range(24)]
    how = {"max_new_tokens": 12, "ignore_eos": True, "batch_size": 4}
    for temperature in (0.0, 0.8):
        sampling = fr.Sampling(temperature=temperature, seed=4)
        plain = fr.generate(TARGETS[target](), prompts, drafter=None, sampling=sampling, **how)
        found = fr.generate(
            TARGETS[target](), prompts, drafter=drafter, sampling=sampling, tree=tree,
            draft_length=3, **how,
        )  # fmt: skip
        assert [each.tokens for each in found] == [each.tokens for each in plain]
        assert not any(each.stats.notes for each in found)
        assert sum(each.stats.accepted for each in found) >= 20


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        ("lean", {"norm_before_fc": True}),
        pytest.param("lean", {"num_hidden_layers": 2}, marks=pytest.mark.slow),
        pytest.param("plain", {"norm_before_fc": True}, marks=pytest.mark.slow),
    ],
)
def test_the_promises_of_every_drafter(changes, target, tmp_path):
    folder = Head(**changes).save(tmp_path)
    check_drafter(lambda: Heads(folder), TARGETS[target](), prompts=PROMPTS)


@pytest.mark.parametrize("rule", ["ratio", "block", "match"])
def test_every_rule_and_automatic_lengths_beside_suffixes(rule, tmp_path):
    folder = Head(fc_norm=True).save(tmp_path, "speculators")
    how = {"max_new_tokens": 12, "ignore_eos": True, "rule": rule}
    found = fr.generate(lean(), PROMPTS, drafter=f"eagle3:{folder}+suffix", **how)
    assert not any(each.stats.notes for each in found)


def test_the_usual_layers_are_those_of_its_target(tmp_path):
    folder = Head(layers=[2, 3, 5]).save(tmp_path, eagle_aux_hidden_state_layer_ids="left out")
    drafter = Heads.load(folder)
    assert drafter.layers == ()
    target = fr.wrap(tiny_llama(seed=3, num_hidden_layers=8))
    fr.generate(target, PROMPTS, drafter=drafter, max_new_tokens=4)
    assert drafter.layers == (2, 4, 5)


def test_a_head_reads_the_head_and_the_embedding_of_its_target(tmp_path):
    """The same guesses as with copies of both in its own files."""
    head = Likely(draft_vocab_size=VOCAB)
    with_both = head.save(tmp_path / "both")
    head.tensors.pop("lm_head.weight")
    without = head.save(tmp_path / "neither")
    states, tokens = inputs(head)
    for name in TARGETS:
        one, other = (
            our_steps(folder, TARGETS[name](), states, tokens, 5) for folder in (with_both, without)
        )
        np.testing.assert_array_equal(one, other)


OPEN: dict[str, tuple[dict[str, Any], str, dict[str, Any], str]] = {
    "residual true": (
        {"norm_before_residual": True},
        "speculators",
        {"norm_before_residual": "left out"},
        "norm_before_residual True",
    ),
    "residual false": (
        {},
        "speculators",
        {"norm_before_residual": "left out"},
        "norm_before_residual False",
    ),
    "layers as vLLM counts": (
        {"layers": [1, 2, 4]},
        "flat",
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}},
        "states after layers 1, 2, 4",
    ),
    "layers as SGLang counts": (
        {"layers": [1, 2, 4]},
        "flat",
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}},
        "states after layers 1, 2, 4",
    ),
    "a rotation that a conversion dropped": (
        {"rope_scaling": LINEAR},
        "speculators",
        {},
        "the target's rotation",
    ),
}
"""A head, its layout, what its files state in place of what is true, and the right reading."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", OPEN)
def test_what_a_file_leaves_open_is_found(case, target, tmp_path, monkeypatch, capsys):
    """The answers are those of the head under the right reading, along random states."""
    changes, layout, stated, reading = OPEN[case]
    head = Head(**changes)
    if "eagle_config" in stated:
        stated = {**stated, "eagle_aux_hidden_state_layer_ids": "left out"}
    if "rope_scaling" in changes:
        layer = {name: v for name, v in head.config.items() if name != "rope_scaling"}
        stated = {"transformer_layer_config": layer}
        turns, factor = frequencies(head.config)
        monkeypatch.setattr(readings, "_rotation_of", lambda target: (turns.numpy(), factor))
    embedding = model().get_input_embeddings().weight.detach()

    def answers(target: Any, layers: list[int]) -> list[readings.Answer]:
        made = []
        for seed in range(2):
            torch.manual_seed(seed)
            tokens = torch.randint(VOCAB, (7,)).tolist()
            states = torch.randn(6 + readings.NUM_NEW, len(layers), WIDTH) * 2
            own = states[:, [layers.index(layer) for layer in head.layers]].flatten(1)
            for end in range(6, 6 + readings.NUM_NEW - 1):
                (logits,) = head.steps(own[:end], tokens, embedding, 0)
                tokens.append(int(head.ids[logits.argmax()]))
            made.append(readings.Answer(tokens, 6, states.flatten(1).numpy()))
        return made

    monkeypatch.setattr(readings, "_answers", answers)
    drafter = Heads(head.save(tmp_path, layout, **stated))
    fr.generate(TARGETS[target](), PROMPTS, drafter=drafter, max_new_tokens=4)
    assert drafter.reading == reading
    assert drafter.layers == tuple(head.layers)
    assert f"It is read with {reading}" in capsys.readouterr().err


def test_readings_are_tried_on_answers_of_the_target(tmp_path, capsys):
    """A head that the target itself agrees with most, since it repeats its head."""
    folder = Likely(layers=[1, 3, 5]).save(tmp_path, "speculators", norm_before_residual="left out")
    drafter = Heads(folder)
    found = fr.generate(lean(), PROMPTS, drafter=drafter, max_new_tokens=4)
    assert drafter.reading.startswith("norm_before_residual")
    assert "leaves open how it was trained" in capsys.readouterr().err
    assert not any(each.stats.notes for each in found)


def test_a_flat_file_without_a_base_turns_as_its_target(tmp_path):
    folder = Head().save(tmp_path, rope_theta=None)
    (design,) = load(folder).designs(NUM_LAYERS, (np.ones(4, np.float32), 1.0)).values()
    assert design.frequencies == (1.0,) * 4
