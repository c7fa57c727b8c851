"""A probe knows what runs will show, and a plan says it plainly."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small import relative, target

import forerun as fr
from forerun.base.errors import InputError
from forerun.measure import round_costs
from forerun.measure.exports import exports, for_forerun, for_sglang, for_vllm, script
from forerun.measure.planner import SpeculationPlan, choose
from forerun.measure.pricing import forecast
from forerun.measure.probe import DrafterProbe, Subject
from forerun.measure.records import Interval
from forerun.measure.round_costs import DraftCosts, TargetCosts, median_interval, spread
from forerun.measure.texts import Text
from forerun.measure.traces import Trace

PROMPTS = [list(range(i, i + 8)) * 2 for i in range(6)]


@pytest.fixture(scope="module", autouse=True)
def in_a_hurry() -> Iterator[None]:
    """A few rounds of each length will do."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(round_costs, "TIMED_TOKENS", 16)
        yield


@pytest.fixture(scope="module")
def probed() -> tuple[Any, DrafterProbe]:
    model = target()
    drafter = fr.drafters.NGram()
    options: dict[str, Any] = {"temperatures": (0.0, 0.8), "batches": (1, 2)}
    found = fr.probe(model, drafter, PROMPTS, max_draft_length=4, max_new_tokens=32, **options)
    return model, found


def test_every_size_of_pass_is_timed_at_every_batch(probed: tuple[Any, DrafterProbe]) -> None:
    _, found = probed
    timed = found.subject.costs
    assert set(timed.passes) == {(b, m) for b in (1, 2) for m in (1, 2, 3, 4, 5)}
    assert set(found.costs.drafts) == {(b, k) for b in (1, 2) for k in (1, 2, 3, 4)}
    assert set(timed.verify) == set(timed.commit) == {1, 2}
    assert set(timed.padding) == {2}
    assert 0 <= timed.padding[2] <= 1
    for table in (timed.passes, found.costs.drafts, timed.verify, timed.commit):
        assert all(0 < each.low <= each.mean <= each.high for each in table.values())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_length", [1, 4])
def test_a_lookup_drafter_is_replayed_exactly(
    probed: tuple[Any, DrafterProbe], temperature: float, draft_length: int
) -> None:
    model, found = probed
    texts = found.subject.texts[temperature]
    runs = [
        fr.generate(
            model,
            text.prompt,
            drafter=fr.drafters.NGram(),
            draft_length=draft_length,
            sampling=text.sampling,
            max_new_tokens=32,
        )
        for text in texts
    ]
    rounds = sum(run.stats.rounds for run in runs)
    tokens = sum(len(run.tokens) for run in runs)
    expected = forecast(found, draft_length=draft_length, temperature=temperature)
    assert expected.tokens_per_round.mean == pytest.approx(tokens / rounds)
    reached = np.sum([run.stats.reached_by_position[0] for run in runs])
    accepted = np.sum([run.stats.accepted_by_position[0] for run in runs])
    rates = found.acceptance_by_position(temperature, "match", draft_length)
    assert rates[0] == pytest.approx(accepted / reached, abs=0.02)  # the last token has no draft


def test_a_model_that_drafts_is_priced_under_every_rule() -> None:
    model = target()
    found = fr.probe(
        model, relative(model), PROMPTS, temperatures=(0.8,), max_draft_length=4, max_new_tokens=32
    )
    assert found.rules(0.8) == ["match", "ratio", "block"]
    match, ratio, block = (
        forecast(found, draft_length=4, temperature=0.8, rule=rule).tokens_per_round.mean
        for rule in found.rules(0.8)
    )
    assert 1.2 < match < ratio < block
    by_position = found.acceptance_by_position(0.8, "ratio")
    assert len(by_position) == 4
    assert all(0.3 < rate < 1 for rate in by_position)


def test_a_tree_is_tried_out_at_every_place() -> None:
    """Greedy, the rounds that are expected of a tree are the rounds that it takes."""
    model = target()
    drafter = relative(model)
    found = fr.probe(model, drafter, PROMPTS[:3], max_draft_length=3, trees=(6,), max_new_tokens=24)
    chain = forecast(found, draft_length=3).tokens_per_round.mean
    tree = forecast(found, draft_length=3, tree=6)
    runs = [
        fr.generate(model, each, drafter=drafter, draft_length=3, tree=6, max_new_tokens=24)
        for each in PROMPTS[:3]
    ]
    rounds = sum(run.stats.rounds for run in runs)
    assert tree.tokens_per_round.mean == pytest.approx(3 * 24 / rounds)
    assert tree.tokens_per_round.mean > chain
    assert found.costs.trees[1, 6].mean > 0
    with pytest.raises(InputError, match="says nothing about this draft length"):
        forecast(found, draft_length=2, tree=6)


def test_what_was_not_probed_is_not_guessed(probed: tuple[Any, DrafterProbe]) -> None:
    _, found = probed
    for options, said in (
        ({"draft_length": 5}, "draft length"),
        ({"draft_length": 2, "batch": 3}, "batch"),
        ({"draft_length": 2, "temperature": 0.5}, "temperature"),
        ({"draft_length": 2, "rule": "typical"}, "rule"),
    ):
        with pytest.raises(InputError, match=f"says nothing about this {said}"):
            forecast(found, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nothing to probe"):
        fr.probe(target(), fr.drafters.NGram(), [[1, 2]], batches=())


def made(hit: float, draft_step: float, pass_growth: float, name: str = "made") -> DrafterProbe:
    """A probe of a machine whose costs are known: a pass takes 1 plus so much per draft token."""
    exact = {(1, m): Interval(*[1 + pass_growth * (m - 1)] * 3) for m in range(1, 9)}
    none = {1: Interval(0.0, 0.0, 0.0)}
    text = Text([0], [1] * 400, fr.Sampling(0.0))
    subject = Subject(target(), {0.0: [text] * 3}, TargetCosts(exact, none, none), (1,), 7)
    survival = np.cumprod(np.full((400, 7), hit), axis=1)
    drafts = {(1, k): Interval(*[draft_step * k] * 3) for k in range(1, 8)}
    traces = {(0.0, "match"): [Trace(survival, np.full(400, 7))] * 3}
    return DrafterProbe(subject, name, DraftCosts(drafts), traces)


@pytest.mark.parametrize("draft_length", [1, 3, 7])
def test_a_forecast_is_the_textbook_formula_where_that_holds(draft_length: int) -> None:
    found = forecast(made(0.8, 0.05, 0.02), draft_length=draft_length)
    passes = [1 + 0.02 * m for m in range(8)]
    textbook = fr.theory.speedup(0.8, draft_length, 0.05, passes)
    assert found.speedup.mean == pytest.approx(textbook, rel=0.02)  # a text has an end
    assert found.tokens_per_round.mean == pytest.approx(
        float(fr.theory.tokens_per_round(0.8, draft_length)), rel=0.02
    )


def test_a_ragged_pass_lies_between_packed_and_padded() -> None:
    """Passes of 4 requests: 1 second plus 0.1 per token in all; one drafts 8, or each has 2."""
    passes = {(4, m): Interval(*[1 + 0.4 * m] * 3) for m in range(1, 10)}
    none = {4: Interval(0.0, 0.0, 0.0)}
    for padding, seconds in ((0.0, 1 + 0.4 * 3), (1.0, 1 + 0.4 * 9), (0.5, 1 + 0.4 * 6)):
        timed = TargetCosts(passes, none, none, {4: padding})
        assert timed.ragged_seconds(4, 3.0, 9.0) == pytest.approx(seconds)
    assert timed.pass_seconds(4, 2.25) == pytest.approx(1 + 0.4 * 2.25)


@pytest.mark.parametrize("padding", [0.0, 1.0])
def test_requests_that_draft_nothing_make_a_batch_cheaper_where_tokens_are_packed(
    padding: float,
) -> None:
    """Every tenth place has a draft of 4, which never survives: among 4 requests someone has one in
    1 - 0.9^4 of the rounds, and 0.4 tokens are drafted on average."""
    passes = {(4, m): Interval(*[float(m)] * 3) for m in range(1, 6)}
    none = {4: Interval(0.0, 0.0, 0.0)}
    model = target()
    text = Text([0], [1] * 1000, fr.Sampling(0.0))
    subject = Subject(model, {0.0: [text]}, TargetCosts(passes, none, none, {4: padding}), (4,), 4)
    trace = Trace(np.zeros((1000, 4)), np.where(np.arange(1000) % 10 == 0, 4, 0))
    free = DraftCosts({(4, k): Interval(1e-9, 1e-9, 1e-9) for k in range(1, 5)})
    found = forecast(
        DrafterProbe(subject, "x", free, {(0.0, "match"): [trace]}), draft_length=4, batch=4
    )
    expected = 1 + (4 * (1 - 0.9**4) if padding else 0.4)
    assert 1 / found.speedup.mean == pytest.approx(expected, rel=1e-3)


def planned(**probes: DrafterProbe) -> SpeculationPlan:
    drafters: dict[str, Any] = dict.fromkeys(probes, fr.drafters.NGram(max_n=3, min_n=2))
    return replace(choose(probes, drafters, batch=1, temperature=0.0), num_prompts=12)


def test_the_faster_drafter_and_its_best_length_are_chosen() -> None:
    found = planned(slow=made(0.9, 0.5, 0.02), good=made(0.8, 0.05, 0.02))
    assert found.drafter_name == "good"
    assert found.choice is not None
    passes = [1 + 0.02 * m for m in range(8)]
    assert found.choice.draft_length == fr.theory.best_draft_length(0.8, 0.05, passes).draft_length
    assert str(found).startswith(f"Draft with made, K = {found.choice.draft_length}, under match")


def test_an_interval_that_contains_1_is_not_clear() -> None:
    found = planned(good=made(0.8, 0.05, 0.02))
    assert found.choice is not None
    interval = replace(found.choice.speedup, low=1.0)
    unclear = replace(found, choice=replace(found.choice, speedup=interval))
    assert str(unclear).startswith("Not clear whether speculation pays: the interval contains 1.")
    assert "made, K = " in str(unclear)


def test_so_is_one_whose_mean_is_below_1() -> None:
    """Then nothing is drafted, and nobody is told that nothing could be gained."""
    found = planned(bad=made(0.3, 0.4, 0.2))
    wide = [replace(one, speedup=replace(one.speedup, high=1.1)) for one in found.forecasts]
    unclear = replace(found, forecasts=tuple(wide))
    assert str(unclear).startswith("Not clear whether speculation pays: the interval contains 1.")
    assert not unclear.speculates
    assert "draft length auto, the default" in str(unclear)


def test_where_nothing_pays_it_says_so() -> None:
    found = planned(bad=made(0.3, 0.4, 0.2))
    assert not found.speculates
    assert found.drafter is None
    assert str(found).startswith("Do not speculate at batch 1")
    arguments = [export.arguments for export in exports(found)]
    assert arguments == ["--drafter none", "", ""]


def test_a_plan_from_real_probes() -> None:
    model = target()
    drafters = {"near": relative(model, 0.01), "lookup": fr.drafters.NGram()}
    found = fr.plan(model, drafters, PROMPTS[:3], max_draft_length=3, max_new_tokens=24)
    assert {each.draft_length for each in found.forecasts} == {1, 2, 3}
    assert len(found.forecasts) == 2 * 3  # greedy, all rules do the same
    best = max(each.speedup.mean for each in found.forecasts)
    assert found.speculates == (best > 1)
    with pytest.raises(InputError, match="nothing to choose from"):
        fr.plan(model, {}, PROMPTS)
    with pytest.raises(InputError, match="cannot be planned"):
        fr.plan(model, drafters, PROMPTS, rules=("typical",))


def test_exports_speak_each_engine_s_language() -> None:
    lookup = planned(ngram=made(0.8, 0.05, 0.02))
    assert lookup.choice is not None
    length = lookup.choice.draft_length
    assert for_forerun(lookup).arguments == f"--drafter ngram --draft-length {length}"
    assert for_vllm(lookup).config == {
        "speculative_config": {
            "num_speculative_tokens": length,
            "method": "custom_class",
            "model": "forerun.integrations.vllm.Proposer",
            "rejection_sample_method": "standard",
        },
        "additional_config": {
            "forerun": {"drafter": "ngram", "ngram": {"max_n": 3, "min_n": 2}},
        },
    }
    assert for_sglang(lookup).arguments == (
        f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {length + 1} "
        "--speculative-ngram-min-match-window-size 2 "
        "--speculative-ngram-max-match-window-size 3 --speculative-ngram-max-bfs-breadth 1 "
        "--speculative-accept-threshold-single 1.0 --speculative-accept-threshold-acc 1.0"
    )
    choice = replace(lookup.choice, rule="block", temperature=0.8)
    model = replace(
        lookup,
        drafter=relative(target()),
        drafter_name="org/small",
        choice=choice,
        temperature=0.8,
    )
    assert for_vllm(model).arguments == (
        f'--speculative-config \'{{"num_speculative_tokens": {length}, '
        '"method": "draft_model", "model": "org/small", "draft_sample_method": "probabilistic", '
        '"rejection_sample_method": "standard"}\''
    )
    assert "--rule block" in str(for_forerun(model).arguments)
    assert "--speculative-algorithm STANDALONE" in str(for_sglang(model).arguments)
    heads = replace(model, drafter=fr.drafters.Heads(), drafter_name="heads")
    assert for_vllm(heads).config == {
        "speculative_config": {
            "num_speculative_tokens": length,
            "method": "eagle3",
            "model": "heads/eagle3",
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "standard",
        }
    }
    assert "forerun export heads --format eagle3 --out heads/eagle3" in for_vllm(heads).notes[1]
    assert str(for_sglang(heads).arguments).startswith(
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path heads/eagle3 "
        f"--speculative-num-steps {length} --speculative-eagle-topk 1"
    )
    strange: Any = type("Strange", (), {"name": "crystal ball"})()
    other = replace(lookup, drafter=strange)
    for export in (for_vllm(other), for_sglang(other)):
        assert export.arguments is None
        assert "no drafter like crystal ball" in export.notes[0]


def test_scripts_for_other_engines_run_in_a_shell_and_say_what_is_lossless() -> None:
    mixed = fr.drafters.Mixed(fr.drafters.Suffix(), fr.drafters.NGram(max_n=4))
    found = replace(planned(ngram=made(0.8, 0.05, 0.02)), drafter=mixed, target="org/it's big")
    text = script(for_vllm(found), found)
    *comments, command = text.splitlines()
    assert all(line.startswith("#") for line in comments)
    assert 'Lossless: rejection_sample_method "standard"' in text
    words = shlex.split(command)
    assert words[:4] == ["exec", "vllm", "serve", "org/it's big"]
    flags = {words[i]: json.loads(words[i + 1]) for i in range(4, len(words), 2)}
    assert flags["--additional-config"]["forerun"] == {
        "drafter": "suffix+ngram",
        "suffix": {"max_match": 16, "worth": 0.15},
        "ngram": {"max_n": 4, "min_n": 2},
    }
    assert flags["--speculative-config"]["method"] == "custom_class"
    lookup = planned(ngram=made(0.8, 0.05, 0.02))
    assert "thresholds 1.0" in script(for_sglang(lookup), lookup)
    nothing = planned(bad=made(0.3, 0.4, 0.2))
    last = script(for_vllm(nothing), nothing).splitlines()[-1]
    assert shlex.split(last) == ["exec", "vllm", "serve", nothing.target]


def test_the_median_and_its_interval() -> None:
    assert median_interval([3.0]) == Interval(3.0, 3.0, 3.0)
    found = median_interval([float(i) for i in range(101)])
    assert found == Interval(50.0, 40.0, 60.0)  # ranks 50.5 -+ 9.85
    assert spread(8) == [1, 2, 3, 4, 6, 8]
    assert spread(5) == [1, 2, 3, 4, 5]
