"""MTP layers with experts, compressed keys or gates, and several in a row: their function, against
transformers' own modules, and the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mtp_stage_reference import KINDS, VOCAB, WIDTH, Layers, target_of

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import MTP
from forerun.drafters.heads import readings
from forerun.drafters.heads.mtp import load
from forerun.drafters.heads.mtp_fitting import fit_stages
from forerun.drafters.heads.mtp_runner import StageRunner
from forerun.generation.choosing import make_drafter

NUM_OWN = 4
CASES = [(kind, 1) for kind in KINDS if kind != "mimo"] + [("mimo", 5), ("glm", 5), ("qwen", 5)]


@cache
def model(kind: str) -> Any:
    return target_of(kind)


def states_of(kind: str, tokens: Sequence[int]) -> Any:
    """The target's states (T, D) after its final norm."""
    with torch.no_grad():
        return model(kind).model(torch.tensor([tokens])).last_hidden_state[0]


def prompt() -> list[int]:
    torch.manual_seed(1)
    return torch.randint(VOCAB, (10,)).tolist()


def fitted(folder: Path, target: Any, norms_output: bool = True) -> Any:
    published: Any = load(folder)
    layout = replace(published.layout, reads_normed=(True,), norms_output=(norms_output,))
    return fit_stages(replace(published, layout=layout), target)[0]


def our_steps(runner: Any, states: Any, tokens: list[int], cuts: Sequence[int] = (4,)) -> list[Any]:
    """What the reference's `steps` gives, by our runner; the prompt comes in parts."""
    state, ends = runner.start(2, 40), [0, *cuts, len(states)]
    for begin, end in pairwise(ends):
        logits = runner.extend(state, [1], [states[begin:end]], [tokens[begin + 1 : end + 1]])
    found = [logits[0].copy()]
    for step in range(NUM_OWN):
        found.append(runner.step(state, [1], [step - 1], [int(found[-1].argmax())])[0].copy())
    return found


def errors(found: Sequence[Any], expected: Sequence[Any]) -> list[float]:
    return [
        float(np.abs(ours - theirs.numpy()).max() / theirs.abs().max())
        for ours, theirs in zip(found, expected, strict=True)
    ]


@pytest.mark.parametrize(("kind", "count"), CASES)
def test_every_kind_through_a_prompt_and_four_own_steps(kind, count, tmp_path):
    tokens, layers = prompt(), Layers(kind, model(kind), count)
    states = states_of(kind, tokens[:-1])
    folder, target = layers.save(tmp_path), fr.wrap(model(kind))
    for norms_output in (True, False) if kind in ("glm", "mimo") else (True,):
        expected = layers.steps(states, tokens, NUM_OWN, norms_output)
        runner = fitted(folder, target, norms_output)
        assert runner.reach == (count if count > 1 else None)
        for cuts in ((4,), (1, 2, 3, 8)):
            assert max(errors(our_steps(runner, states, tokens, cuts), expected)) <= 1e-5


def without(part: str) -> Any:
    """A change that empties some tensors of every layer."""

    def change(stages: list[Any]) -> None:
        for stage in stages:
            changed = [v for n, v in stage.state_dict().items() if part in n]
            assert changed
            for value in changed:
                value.zero_()

    return change


MUTANTS: dict[str, tuple[str, int, Any]] = {
    "layers swapped": ("glm", 5, lambda stages: stages.insert(0, stages.pop(1))),
    "no shared expert": ("glm", 1, without("shared_experts.down_proj")),
    "no bias of the router": ("glm", 1, without("e_score_correction_bias")),
    "no bias of the router, compressed": ("deepseek", 1, without("e_score_correction_bias")),
    "no shared expert, gated": ("qwen", 1, without("shared_expert.down_proj")),
    "shared expert half open": ("qwen", 1, without("shared_expert_gate")),
    "experts swapped": ("glm", 1, lambda stages: stages[0].block.mlp.experts.down_proj.copy_(
        stages[0].block.mlp.experts.down_proj.flip(0))),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_the_figures_above_would_show_what_is_wrong(name, tmp_path):
    kind, count, change = MUTANTS[name]
    tokens, layers = prompt(), Layers(kind, model(kind), count)
    states = states_of(kind, tokens[:-1])
    expected = layers.steps(states, tokens, NUM_OWN)
    runner = fitted(layers.save(tmp_path), fr.wrap(model(kind)))
    assert max(errors(our_steps(runner, states, tokens), expected)) <= 1e-5
    change(runner.stages)
    assert max(errors(our_steps(runner, states, tokens), expected)) > 1e-2


def test_a_tree_and_a_row_of_few_entries_are_those_of_chains(tmp_path):
    """Two branches in one call, and texts that are shorter than the layers are many."""
    tokens, layers = prompt(), Layers("mimo", model("mimo"), 5)
    states = states_of("mimo", tokens)
    runner = fitted(layers.save(tmp_path), fr.wrap(model("mimo")))
    for length in (1, 2, 9):
        known, own = states[:length], tokens[: length + 1]
        state = runner.start(2, 40)
        logits = runner.extend(state, [1, 0], [known, known], [own[1:], own[1:]])
        np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)
        first, second = (int(each) for each in np.argsort(logits[0])[-2:])
        both = runner.step(state, [0, 0, 1], [-1, -1, -1], [first, second, second])
        runner.step(state, [0], [0], [int(both[0].argmax())])
        deep = runner.step(state, [0, 1], [1, 0], [7, 7])
        assert max(errors([deep[0]], [_along(layers, known, own, [second, 7])])) <= 1e-5
        np.testing.assert_allclose(deep[0], deep[1], atol=1e-5)


def _along(layers: Layers, states: Any, tokens: list[int], guesses: list[int]) -> Any:
    """The logits after a path of guesses, each by the layer whose turn it is."""
    features, text = states[None], torch.tensor([tokens[1:]])
    for number in range(len(guesses) + 1):
        places = torch.arange(1, text.shape[1] + 1)[None]
        with torch.no_grad():
            features = layers.model.forward_layer(number, features, places, None, input_ids=text)
            logits = layers.target.lm_head(features[0, -1])
        if number < len(guesses):
            text = torch.cat((text[:, 1:], torch.tensor([[guesses[number]]])), 1)
    return logits


def test_long_prompts_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("forerun.drafters.heads.mtp_runner.MOST_TOKENS", 3)
    tokens, layers = prompt(), Layers("mimo", model("mimo"), 5)
    states = states_of("mimo", tokens[:-1])
    expected = layers.steps(states, tokens, NUM_OWN)
    runner = fitted(layers.save(tmp_path), fr.wrap(model("mimo")))
    assert max(errors(our_steps(runner, states, tokens, ()), expected)) <= 1e-5


@cache
def drafting(folder: Path, pass_name: str) -> Any:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder)
    if pass_name == "transformers":
        return fr.wrap(plain)
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    return LeanModel(plain)


@pytest.mark.parametrize(
    ("kind", "count", "tree", "pass_name"),
    [
        ("glm", 1, None, "transformers"),
        ("qwen hybrid", 1, None, "transformers"),
        ("qwen", 2, 9, "transformers"),
        ("mimo", 3, None, "lean"),
        ("mimo", 3, 9, "transformers"),
        pytest.param("deepseek", 1, 9, "transformers", marks=pytest.mark.slow),
        pytest.param("deepseek", 2, None, "transformers", marks=pytest.mark.slow),
        pytest.param("mimo", 2, 9, "lean", marks=pytest.mark.slow),
    ],
)
def test_texts_are_those_of_plain_decoding(kind, count, tree, pass_name, tmp_path):
    layers = Layers(kind, target_of(kind), count)
    layers.make_likely()
    target, drafter = drafting(layers.save(tmp_path), pass_name), make_drafter("mtp")
    texts = range(6 if "hybrid" in kind else 24)  # its rows are computed one by one
    prompts = [[1 + i, 9, 3 + i % 5, 7][: 1 + i % 4] for i in texts]
    how = {"max_new_tokens": [4 + i % 9 for i in texts], "ignore_eos": True, "batch_size": 4}
    for temperature in (0.0, 0.8):
        sampling = fr.Sampling(temperature=temperature, seed=4)
        plain = fr.generate(target, prompts, drafter=None, sampling=sampling, **how)
        found = fr.generate(
            target, prompts, drafter=drafter, sampling=sampling, tree=tree, draft_length=4, **how
        )
        assert [each.tokens for each in found] == [each.tokens for each in plain]
        assert not any(each.stats.notes for each in found)
        assert sum(each.stats.drafted for each in found) >= len(texts)
        assert sum(each.stats.accepted for each in found) >= len(texts) // 6
    assert drafter.layers == (target.num_layers,)


READINGS = [(reads, norms) for reads in (True, False) for norms in (True, False)]


@pytest.mark.parametrize(("reads_normed", "norms_output"), READINGS)
@pytest.mark.parametrize(("kind", "count"), [("glm", 1), ("mimo", 2)])
def test_what_a_layout_leaves_open_is_found(
    kind, count, reads_normed, norms_output, tmp_path, monkeypatch, capsys
):
    """The answers are those of the layers under the right reading, along random states."""
    layers, length = Layers(kind, model(kind), count), 6 + readings.NUM_NEW

    def answers(*_: Any) -> list[readings.Answer]:
        made = []
        for seed in range(2):
            torch.manual_seed(seed)
            tokens, before = torch.randint(VOCAB, (7,)).tolist(), torch.randn(length, WIDTH) * 2
            after = model(kind).model.norm(before).detach()
            own = after if reads_normed else before
            while len(tokens) < length:
                found = layers.steps(own[: len(tokens) - 1], tokens, 1, norms_output)
                tokens += [int(logits.argmax()) for logits in found]
            made.append(readings.Answer(tokens, 6, after.numpy()))
        return made

    monkeypatch.setattr(readings, "_answers", answers)
    drafter = MTP(layers.save(tmp_path))
    fr.generate(fr.wrap(model(kind)), [[1, 2]], drafter=drafter, max_new_tokens=2)
    words = {True: "after", False: "before"}
    expected = f"states {words[reads_normed]} the final norm, outputs {words[norms_output]} its own"
    assert drafter.reading == expected
    assert f"It is read with {expected}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["qwen", "qwen hybrid"])
def test_each_token_of_a_text_is_read_once_with_its_state(kind, tmp_path, monkeypatch):
    """Also where a refused guess sends the target back to an earlier state."""
    target = drafting(Layers(kind, target_of(kind)).save(tmp_path), "transformers")
    read, states, whole = [], [], StageRunner.extend

    def extend(self: Any, state: Any, rows: Any, features: Any, tokens: Any) -> Any:
        read.extend(tokens[0])
        states.append(torch.as_tensor(features[0]).clone())
        return whole(self, state, rows, features, tokens)

    monkeypatch.setattr(StageRunner, "extend", extend)
    how = {"max_new_tokens": 14, "ignore_eos": True, "draft_length": 3}
    (found,) = fr.generate(target, [[5, 9, 3]], drafter="mtp", **how)
    text = [5, 9, 3, *found.tokens]
    assert found.stats.accepted < found.stats.drafted
    assert len(read) > 10
    assert read == text[1 : 1 + len(read)]
    with torch.no_grad():
        expected = target.model.model(torch.tensor([text[: len(read)]])).last_hidden_state[0]
    assert (torch.cat(states) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_other_rules_and_automatic_lengths(rule, tmp_path):
    layers = Layers("mimo", target_of("mimo"), 2)
    target = drafting(layers.save(tmp_path), "transformers")
    how = {"max_new_tokens": 12, "ignore_eos": True, "rule": rule}
    found = fr.generate(target, [[5, 9, 3], [7] * 11], drafter="mtp+suffix", **how)
    assert not any(each.stats.notes for each in found)


def test_a_draft_is_no_longer_than_the_layers_are_many(tmp_path):
    layers = Layers("mimo", target_of("mimo"), 2)
    target = drafting(layers.save(tmp_path), "transformers")
    how = {"max_new_tokens": 12, "ignore_eos": True, "draft_length": 5}
    (found,) = fr.generate(target, [[5, 9, 3]], drafter="mtp", **how)
    assert 0 < found.stats.drafted <= 2 * found.stats.rounds


EXPERT = "model.layers.3.mlp.experts.3."


def dropped(part: str) -> Any:
    def change(tensors: dict[str, Any]) -> None:
        names = [name for name in tensors if part in name]
        assert names
        for name in names:
            del tensors[name]

    return change


def narrower(tensors: dict[str, Any]) -> None:
    tensors[f"{EXPERT}up_proj.weight"] = tensors[f"{EXPERT}up_proj.weight"][:-1]


REFUSED: dict[str, tuple[Any, str]] = {
    "expert 3 of 8": (dropped(EXPERT), rf"3 missing: {EXPERT}down_proj.weight, {EXPERT}gate"),
    "half an expert": (dropped(f"{EXPERT}up"), f"1 missing: {EXPERT}up_proj.weight"),
    "the router's bias": (dropped("e_score"), "1 missing: .*gate.e_score_correction_bias"),
    "the shared expert": (dropped("shared_experts"), "3 missing: .*mlp.shared_experts.down_proj"),
    "the projection": (dropped("eh_proj"), r"1 missing: model.layers.3.eh_proj.weight"),
    "an expert more": (lambda t: t.update({EXPERT.replace("3.mlp", "3.mlp").replace(
        "experts.3", "experts.8") + "up_proj.weight": torch.ones(16, 32)}),
        r"its tensor model.layers.3.mlp.experts.8.up_proj.weight is in none of the target's"),
    "narrow": (narrower, rf"{EXPERT}up_proj.weight is of another shape.*\(15, 32\) rather than "
                         r"\(16, 32\)"),
    "nan": (lambda t: t[f"{EXPERT}up_proj.weight"].fill_(torch.nan),
            f"{EXPERT}up_proj.weight holds NaN"),
    "whole numbers": (lambda t: t.update({"model.layers.3.mlp.gate.weight": torch.ones(
        8, 32, dtype=torch.int8)}), "quantised .*gate.weight: int8"),
    "scales": (lambda t: t.update({f"{EXPERT}up_proj.weight_scale_inv": torch.ones(1)}),
               "its tensors are quantised .*up_proj.weight_scale_inv"),
    "another layout": (lambda t: [t.update({n.replace("layers.3", "mtp.layers.0"): t.pop(n)})
                                  for n in list(t)],
                       r"layout of these MTP layers is not known here \(model.mtp.layers.0"),
    "nothing of it": (dropped("layers.3."), r"promises an MTP layer \(num_nextn_predict_layers\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_layers_that_cannot_be_read_are_refused(case, tmp_path):
    change, message = REFUSED[case]
    folder = Layers("glm", model("glm")).save(tmp_path, change)
    with pytest.raises((InputError, UnsupportedError), match=message):
        fr.generate(fr.wrap(model("glm")), [[1, 2]], drafter=f"mtp:{folder}", max_new_tokens=4)


@pytest.mark.parametrize(("kind", "place"), [("glm", "model.layers.4."), ("qwen", "mtp.layers.1."),
                                             ("mimo", "model.mtp_layers.1.")])  # fmt: skip
def test_layers_that_a_copy_lacks_are_named(kind, place, tmp_path):
    layers = Layers(kind, model(kind), 2)
    folder = layers.save(tmp_path / "dropped", dropped(place))
    with pytest.raises(
        InputError, match=rf"lack the MTP layer {place}\*, and config.json prom.* 2"
    ):
        MTP(folder)
    three = Layers(kind, model(kind), 3).save(tmp_path / "between", dropped(place))
    with pytest.raises(InputError, match=rf"lack the MTP layer {place}\*"):
        MTP(three)


def test_sizes_of_other_targets_are_refused(tmp_path):
    folder = Layers("glm", model("glm")).save(tmp_path / "first", hidden_size="32")
    with pytest.raises(InputError, match="hidden_size is no size of its tensors"):
        MTP(folder)
    folder = Layers("glm", model("glm")).save(tmp_path / "second")
    with pytest.raises(UnsupportedError, match=r"self_attn.k_norm.weight is in none"):
        fr.generate(fr.wrap(model("deepseek")), [[1, 2]], drafter=f"mtp:{folder}")
