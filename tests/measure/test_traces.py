"""Survival given the text: against enumeration, against the rules' closed forms, against runs."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from small import relative, target

import forerun as fr
from forerun import theory
from forerun.drafters.base import Guess
from forerun.measure.texts import Text, write_texts
from forerun.measure.traces import (
    Trace,
    block_wise,
    shared_hit,
    slot_by_slot,
    trace_of_guesses,
    traces_of_laws,
)

SAMPLING = fr.Sampling(temperature=0.8, seed=0)


def random_laws(seed: int, num_tokens: int, vocab_size: int) -> Any:
    """A law for every context of a few tokens: (tokens before) -> (V,)."""
    rng = np.random.default_rng(seed)
    contexts = [c for n in range(num_tokens) for c in product(range(vocab_size), repeat=n)]
    return {context: rng.dirichlet(np.full(vocab_size, 0.7)) for context in contexts}


@pytest.mark.parametrize("seed", range(5))
def test_the_chance_given_the_text_averages_to_the_closed_form(seed: int) -> None:
    """Over texts of the target's law: the coupling formula for match, 1 - TV for ratio."""
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(5), size=2)
    shared = sum(p[x] * shared_hit(p, q, x) for x in range(5))
    assert shared == pytest.approx(float(theory.gumbel_acceptance(p, q)), abs=1e-12)
    ratio = sum(p[x] * min(1.0, q[x] / p[x]) for x in range(5))
    assert ratio == pytest.approx(float(theory.acceptance(p, q)), abs=1e-12)


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("seed", range(4))
def test_survival_along_texts_is_survival_of_drafts(seed: int, rule: str) -> None:
    """E over texts of p equals E over drafts of q of what theory says about the draft."""
    size, most = 3, 3
    p, q = random_laws(seed, most, size), random_laws(seed + 100, most, size)
    given_text, given_draft = np.zeros(most), np.zeros(most)
    survival = theory.ratio_survival if rule == "ratio" else theory.block_survival
    for path in product(range(size), repeat=most):
        p_at = np.array([p[path[:i]][path[i]] for i in range(most)])
        q_at = np.array([q[path[:i]][path[i]] for i in range(most)])
        ratios = q_at / p_at
        along = (
            slot_by_slot(np.minimum(ratios, 1), most)
            if rule == "ratio"
            else block_wise(ratios, most)
        )
        given_text += p_at.prod() * along[0]
        given_draft += q_at.prod() * survival(p_at, q_at)
    assert given_text == pytest.approx(given_draft, abs=1e-12)


def test_visits_count_the_rounds_of_a_text() -> None:
    """Certain survival is a replay: rounds start after each refusal's correction."""
    survival = np.array([[1, 1], [1, 0], [0, 0], [1, 1], [1, 0], [0, 0]], dtype=float)
    trace = Trace(survival, np.full(6, 2))
    assert trace.visits(2).tolist() == [1, 0, 0, 1, 0, 0]
    assert trace.visits(1).tolist() == [1, 0, 1, 1, 0, 1]
    assert trace.visits(0).tolist() == [1] * 6
    halves = Trace(np.full((3, 1), 0.5), np.full(3, 1))
    assert halves.visits(1) == pytest.approx([1, 0.5, 0.75])


def test_a_tree_counts_its_path_along_the_text() -> None:
    text = Text([0], [5, 6, 7], SAMPLING)
    tree = Guess([9, 5, 6, 8], parents=[-1, -1, 1, 2])
    found = trace_of_guesses(text, [tree, Guess([6, 7]), Guess()], 3)
    assert found.survival.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert found.drafted.tolist() == [4, 2, 0]


@cache
def written(temperature: float) -> tuple[Any, Any, list[Text], list[dict[str, Trace]]]:
    """A target, a drafter that often agrees with it, texts, and what is expected of each rule."""
    model = target()
    drafter = relative(model)
    prompts = [model.tokenizer.encode(f"{i} and so on") for i in range(8)]
    texts = write_texts(model, prompts, temperature=temperature, max_new_tokens=30)
    traces = [traces_of_laws(model, drafter.model, text, text.sampling, 5) for text in texts]
    return model, drafter, texts, traces


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rule", ["match", pytest.param("ratio", marks=pytest.mark.slow), "block"])
def test_expected_rounds_are_the_rounds_that_are_run(rule: str, temperature: float) -> None:
    """Greedy it is exact.  Sampled, 8 texts of 30 tokens: within 4 standard errors of a mean of
    some 120 accepted lengths with a deviation below 1.6, for a false alarm in 16,000."""
    model, drafter, texts, traces = written(temperature)
    expected = sum(trace[rule].rounds(5) for trace in traces)
    found = fr.generate(
        model,
        [text.prompt for text in texts],
        drafter=drafter,
        draft_length=5,
        rule=rule,
        sampling=[text.sampling for text in texts],
        max_new_tokens=30,
    )
    num_tokens = sum(len(text.output) for text in texts)
    rounds = sum(each.stats.rounds for each in found)
    assert num_tokens / rounds > 1.2  # drafts are accepted
    if temperature == 0:
        assert rounds == pytest.approx(expected)
    else:
        off = 4 * 1.6 / rounds**0.5
        assert num_tokens / rounds == pytest.approx(num_tokens / expected, abs=off)
