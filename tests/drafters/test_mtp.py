"""MTP layers: the function of every layout and reading on both runners, and the texts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from eagle3_reference import NUM_LAYERS, VOCAB, WIDTH
from mtp_reference import NAMES, Layer, Likely
from safetensors.torch import load_file, save_file
from tiny_heads import tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import MTP
from forerun.drafters.heads import readings
from forerun.drafters.heads.fitting import fit
from forerun.drafters.heads.mtp import load, of
from forerun.generation.choosing import make_drafter
from forerun.testing import check_drafter

NUM_OWN = 4
PROMPTS = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]
READINGS = {  # the states before and after the norm that follows them
    "after, after": (True, True),
    "after, before": (True, False),
    "before, after": (False, True),
    "before, before": (False, False),
}


@cache
def model() -> Any:
    made = tiny_llama(seed=3)
    torch.nn.init.uniform_(made.model.norm.weight, 0.3, 2.0)  # else all readings are the same
    return made


@cache
def lean() -> Any:
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    return LeanModel(model())


TARGETS = {"plain": lambda: fr.wrap(model()), "lean": lean}


def states_of(tokens: list[int]) -> tuple[Any, Any]:
    """The target's states (T, D) before and after its final norm."""
    kept = []
    hook = model().model.norm.register_forward_hook(lambda _, given, made: kept.extend(
        (given[0][0], made[0])))  # fmt: skip
    with torch.no_grad():
        model()(torch.tensor([tokens]))
    hook.remove()
    return kept[0], kept[1]


def our_steps(folder: Path, target: Any, states: Any, tokens: list[int], reading: str) -> list[Any]:
    """What the reference's `steps` gives, by our runner; the prompt comes in two parts."""
    reads_normed, norms_output = READINGS[reading]
    published = load(folder)
    layout = replace(published.layout, reads_normed=(reads_normed,), norms_output=(norms_output,))
    trained, _ = readings.settle(replace(published, layout=layout), target)
    runner, cut = fit(trained, target), len(states) // 2
    state = runner.start(1, 40)
    runner.extend(state, [0], [states[:cut]], [tokens[1 : cut + 1]])
    found = [runner.extend(state, [0], [states[cut:]], [tokens[cut + 1 :]])[0].copy()]
    for step in range(NUM_OWN):
        found.append(runner.step(state, [0], [step - 1], [int(found[-1].argmax())])[0].copy())
    return found


def prompt() -> list[int]:
    torch.manual_seed(1)
    return torch.randint(VOCAB, (10,)).tolist()


CASES = [(layout, "after, after") for layout in NAMES] + [("deepseek", name) for name in READINGS]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("layout", "reading"), [*dict.fromkeys(CASES)])
def test_every_layout_and_reading_through_a_prompt_and_four_own_steps(
    layout, reading, target, tmp_path
):
    tokens = prompt()
    before, after = states_of(tokens[:-1])
    kind = {"qwen": {"model_type": "qwen3"}, "mimo": {"attention_bias": True}}.get(layout, {})
    layer = Layer(layout, **kind)
    reads_normed, norms_output = READINGS[reading]
    expected = layer.steps(
        after if reads_normed else before, tokens, model(), NUM_OWN, norms_output
    )
    found = our_steps(layer.save(tmp_path), TARGETS[target](), after, tokens, reading)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs.numpy()).max() <= 1e-5 * theirs.abs().max()


def test_the_figures_above_would_show_what_is_wrong(tmp_path, monkeypatch):
    """Swapped halves, features and tokens a place too late, and each reading taken as another."""
    tokens, layer = prompt(), Layer("deepseek")
    _, after = states_of(tokens[:-1])
    folder, target = layer.save(tmp_path), fr.wrap(model())
    expected = [step.numpy() for step in layer.steps(after, tokens, model(), NUM_OWN)]

    def error(step: int, reading: str = "after, after", states: Any = after) -> float:
        found = our_steps(folder, target, states, tokens, reading)
        return float(np.abs(found[step] - expected[step]).max() / np.abs(expected[step]).max())

    assert max(error(step) for step in range(NUM_OWN + 1)) < 1e-5
    assert error(0, states=torch.roll(after, 1, 0)) > 0.1
    assert error(0, "before, after") > 1e-2
    assert error(0, "after, before") < 1e-5 < 1e-2 < error(1, "after, before")
    monkeypatch.setattr("forerun.drafters.heads.mtp.swapped", lambda columns: columns)
    assert error(0) > 0.1


def test_it_is_the_function_of_transformers(tmp_path):
    """Its own module goes on from normed states, and counts places from one."""
    layers = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(getattr(layers, "MtpModel", None), "forward_layer"):
        pytest.skip("this release of transformers has no module for MTP layers")
    target, tokens = model(), prompt()
    layer = Layer("deepseek", rms_norm_eps=target.config.rms_norm_eps)
    target.config.num_mtp_layers = 1
    try:
        theirs = layers.MtpModel(target, 1).eval()
    finally:
        del target.config.num_mtp_layers
    at = "model.layers.5."
    names = {n.removeprefix(at): v for n, v in layer.tensors.items()}
    names["post_norm.weight"] = names.pop("shared_head.norm.weight")
    around = ("enorm", "hnorm", "eh_proj", "post_norm")
    own = {n: v for n, v in names.items() if n.startswith(around)}
    block = {f"mtp_block.{n}": v for n, v in names.items() if n not in own}
    theirs.layers[0].load_state_dict(own | block)
    _, after = states_of(tokens[:-1])
    features, text, expected = after[None], torch.tensor([tokens[1:]]), []
    for _ in range(NUM_OWN + 1):
        places = torch.arange(1, text.shape[1] + 1)[None]
        with torch.no_grad():
            outputs = theirs.forward_layer(0, features, places, None, input_ids=text)
            expected.append(target.lm_head(outputs[0, -1]).numpy())
        features = torch.cat((features, outputs[:, -1:]), 1)
        text = torch.cat((text, torch.tensor([[int(expected[-1].argmax())]])), 1)
    for name in TARGETS:
        found = our_steps(layer.save(tmp_path), TARGETS[name](), after, tokens, "after, after")
        for ours, other in zip(found, expected, strict=True):
            assert np.abs(ours - other).max() <= 1e-5 * np.abs(other).max()


@cache
def target_in(folder: Path, kind: str) -> Any:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder)
    if kind == "plain":
        return fr.wrap(plain)
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    return LeanModel(plain)


@pytest.mark.parametrize(
    ("layout", "tree", "kind"),
    [
        ("qwen", None, "plain"),
        ("qwen", 9, "lean"),
        ("mimo", None, "lean"),
        ("mimo", 9, "plain"),
        pytest.param("qwen", None, "lean", marks=pytest.mark.slow),
        pytest.param("qwen", 9, "plain", marks=pytest.mark.slow),
        pytest.param("mimo", None, "plain", marks=pytest.mark.slow),
        pytest.param("mimo", 9, "lean", marks=pytest.mark.slow),
    ],
)
def test_24_texts_are_those_of_plain_decoding(kind, tree, layout, tmp_path, capsys):
    """The layer lies in the files of its target, in a shard with other tensors."""
    folder = Likely(layout).save_within(tmp_path, model())
    target, drafter = target_in(folder, kind), make_drafter("mtp")
    prompts = [[1 + i, 9, 3 + i % 5, 7] for i in range(24)]
    how = {"max_new_tokens": 12, "ignore_eos": True, "batch_size": 4}
    for temperature in (0.0, 0.8):
        sampling = fr.Sampling(temperature=temperature, seed=4)
        plain = fr.generate(target, prompts, drafter=None, sampling=sampling, **how)
        found = fr.generate(
            target, prompts, drafter=drafter, sampling=sampling, tree=tree, draft_length=3, **how
        )
        assert [each.tokens for each in found] == [each.tokens for each in plain]
        assert not any(each.stats.notes for each in found)
        assert sum(each.stats.accepted for each in found) >= 12
    assert drafter.layers == (NUM_LAYERS,)
    assert ("leaves open" in capsys.readouterr().err) == (layout == "mimo")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reading", READINGS)
def test_what_a_layout_leaves_open_is_found(reading, target, tmp_path, monkeypatch, capsys):
    """The answers are those of the layer under the right reading, along random states."""
    layer, (reads_normed, norms_output) = Layer("deepseek"), READINGS[reading]

    def answers(_: Any, layers: list[int]) -> list[readings.Answer]:
        made = []
        for seed in range(2):
            torch.manual_seed(seed)
            tokens = torch.randint(VOCAB, (7,)).tolist()
            before = torch.randn(6 + readings.NUM_NEW, WIDTH) * 2
            after = model().model.norm(before).detach()
            own = after if reads_normed else before
            while len(tokens) < 6 + readings.NUM_NEW:
                # each second guess goes on from the layer's own output
                end = len(tokens) - 1
                for logits in layer.steps(own[:end], tokens, model(), 1, norms_output):
                    tokens.append(int(logits.argmax()))
            made.append(readings.Answer(tokens, 6, after.numpy()))
        return made

    monkeypatch.setattr(readings, "_answers", answers)
    drafter = MTP(layer.save(tmp_path))
    fr.generate(TARGETS[target](), PROMPTS, drafter=drafter, max_new_tokens=4)
    first, second = reading.split(", ")
    assert drafter.reading == f"states {first} the final norm, outputs {second} its own"
    assert f"It is read with {drafter.reading}" in capsys.readouterr().err


def test_the_promises_of_every_drafter(tmp_path):
    folder = Layer("qwen").save(tmp_path)
    check_drafter(lambda: MTP(folder), lean(), prompts=PROMPTS)


@pytest.mark.parametrize("rule", ["ratio", "block", "match"])
def test_every_rule_and_automatic_lengths_beside_suffixes(rule, tmp_path):
    folder = Layer("qwen").save(tmp_path)
    how = {"max_new_tokens": 12, "ignore_eos": True, "rule": rule}
    found = fr.generate(lean(), PROMPTS, drafter=f"mtp:{folder}+suffix", **how)
    assert not any(each.stats.notes for each in found)


def altered(folder: Path, change: Any) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({n: v.contiguous() for n, v in tensors.items()}, folder / "model.safetensors")
    return folder


def less(tensors: dict[str, Any]) -> None:
    tensors["mtp.layers.0.mlp.up_proj.weight"] = tensors["mtp.layers.0.mlp.up_proj.weight"][:-1]


AT = "mtp.layers.0."
REFUSED: dict[str, tuple[Any, str]] = {
    "quantised": (lambda t: t.update({f"{AT}mlp.up_proj.weight_scale_inv": torch.ones(1)}),
                  "its tensors are quantised .*weight_scale_inv"),
    "whole numbers": (lambda t: t.update({"mtp.fc.weight": torch.ones(32, 64, dtype=torch.int8)}),
                      "quantised .*mtp.fc.weight: int8"),
    "missing": (lambda t: t.pop(f"{AT}mlp.down_proj.weight"), "1 missing: mtp.layers.0.mlp.down"),
    "no projection": (lambda t: t.pop("mtp.fc.weight"), "1 missing: mtp.fc.weight"),
    "narrow": (less, r"up_proj.weight is of another shape.*\(47, 32\) rather than \(48, 32\)"),
    "nan": (lambda t: t["mtp.norm.weight"].fill_(torch.nan), "mtp.norm.weight holds NaN"),
    "more": (lambda t: t.update({f"{AT}gate.weight": torch.ones(3)}), "nothing of its tensor mtp"),
    "none": (lambda t: [t.pop(name) for name in list(t)[1:]] and t.update(a=t.popitem()[1]),
             r"promises an MTP layer \(mtp_num_hidden_layers\).*left out"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_layers_that_cannot_be_read_are_refused(case, tmp_path):
    change, message = REFUSED[case]
    folder = altered(Layer("qwen").save(tmp_path, mtp_num_hidden_layers=1), change)
    with pytest.raises((InputError, UnsupportedError), match=message):
        MTP(folder)


@pytest.mark.parametrize("part", ["mlp.experts.0.up_proj", "self_attn.q_a_proj"])
def test_parts_that_no_layer_of_the_target_has_are_refused(part, tmp_path):
    folder = altered(
        Layer("qwen").save(tmp_path), lambda t: t.update({f"{AT}{part}.weight": torch.ones(2, 2)})
    )
    for target in (fr.wrap(model()), lean()):
        with pytest.raises(UnsupportedError, match=rf"its tensor {AT}{part}.weight is in none"):
            fr.generate(target, PROMPTS, drafter=f"mtp:{folder}")


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"attn_output_gate": True}, "attention has a gate"),
        ({"hidden_act": "gelu"}, "activation is gelu"),
        ({"layer_types": ["sliding_attention"] * 5}, "other kinds: sliding_attention"),
        ({"partial_rotary_factor": 0.5}, "turns only part"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "an EAGLE-3 draft model"),
    ],
)
def test_settings_of_other_functions_are_refused(stated, message, tmp_path):
    with pytest.raises(UnsupportedError, match=message):
        MTP(Layer("qwen").save(tmp_path, **stated))


def test_the_layer_of_another_target_is_refused(tmp_path):
    small = Layer("mimo", hidden_size=24).save(tmp_path / "narrow")
    with pytest.raises(UnsupportedError, match="hidden_size is 32 rather than 24"):
        fr.generate(lean(), PROMPTS, drafter=f"mtp:{small}")
    within = Layer("deepseek").save_within(tmp_path / "within", model())
    with pytest.raises(UnsupportedError, match="num_layers is 4 rather than 5"):
        fr.generate(fr.wrap(tiny_llama(num_hidden_layers=4)), PROMPTS, drafter=f"mtp:{within}")


def test_a_target_without_a_layer_or_without_files(tmp_path):
    model().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="No MTP layer is in the files"):
        fr.generate(target_in(tmp_path, "plain"), PROMPTS, drafter="mtp")
    with pytest.raises(InputError, match="not loaded from a folder or the hub"):
        fr.generate(fr.wrap(model()), PROMPTS, drafter="mtp")


def test_what_config_json_promises_and_the_files_lack(tmp_path):
    model().save_pretrained(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(about | {"num_nextn_predict_layers": 1}))
    with pytest.raises(InputError, match=r"promises an MTP layer \(num_nextn_predict_layers\)"):
        MTP(tmp_path)


def test_a_model_whose_files_hold_a_layer_is_packed_as_it_is(tmp_path):
    """Its files are enough: nothing is loaded by transformers, the head included."""
    target = fr.load(str(Likely("qwen").save_within(tmp_path, model())), device="cpu")
    found = fr.generate(target, PROMPTS, drafter="mtp", max_new_tokens=12, ignore_eos=True)
    assert target._model is None
    plain = fr.generate(lean(), PROMPTS, drafter=None, max_new_tokens=12, ignore_eos=True)
    assert [each.tokens for each in found] == [each.tokens for each in plain]


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_head_is_that_of_the_model(is_tied, tmp_path):
    target = tiny_llama(tie_word_embeddings=is_tied)
    table = target.get_output_embeddings().weight.detach().numpy()
    found = load(Layer("deepseek").save_within(tmp_path, target))
    np.testing.assert_array_equal(found.weights["head.weight"], table)
    fr.load(str(tmp_path), lean=False)  # its tensors are no layer that config.json leaves out


def test_copies_of_the_embedding_and_later_layers_are_left_alone(tmp_path, capsys):
    layer = Layer("deepseek")
    more = {n.replace(".5.", ".6."): v + 1 for n, v in layer.tensors.items()}
    more["model.layers.5.embed_tokens.weight"] = torch.ones(VOCAB, WIDTH)
    more["model.layers.5.shared_head.head.weight"] = torch.ones(VOCAB, WIDTH)
    found = load(layer.save_within(tmp_path, model(), **more))
    assert "2 MTP layers; num_nextn_predict_layers says 1" in capsys.readouterr().err
    expected = load(layer.save(tmp_path / "alone"))
    for name, values in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], values)


def test_a_later_layer_does_not_take_the_place_of_the_first(tmp_path):
    layer = Layer("deepseek")
    layer.tensors = {n.replace(".5.", ".6."): v for n, v in layer.tensors.items()}
    with pytest.raises(
        InputError, match=r"MTP layer model.layers.6.\* and not the first, model.*5"
    ):
        MTP(layer.save(tmp_path))


def test_a_target_whose_files_are_not_known_is_refused_without_asking_the_hub(monkeypatch) -> None:
    target = SimpleNamespace(name="nobody/has-this")
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it asked the network"))
    with pytest.raises(InputError, match=r"files are not known. Received 'nobody/has-this'"):
        of(target)
