"""A plan says everything: another executor, by another clock, comes to the same decisions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from drafting import tiny_pair

import forerun as fr
from forerun import rules
from forerun.base.clock import ErraticClock, timed_by
from forerun.drafters import Drafter, Model, NGram, Suffix
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.drafting import Drafting
from forerun.engine.engine import Engine
from forerun.engine.plan import RoundPlan, SamplingArrays
from forerun.engine.stepwise import Decision, Stepwise
from forerun.generation.intake import make_request
from forerun.loading.load import wrap
from forerun.models import TableModel
from forerun.trees.tree import Tree

PROMPTS = [[1], [2, 3, 1, 2, 3], [3, 1], [4, 5]]
TEMPERATURES = [0.0, 0.9, 1.0, 0.7]
NUM_TOKENS = [40, 70, 60, 50]
NUM_ROWS = 3


def target() -> Any:
    return wrap(TableModel.random(vocab_size=7, order=2, seed=0))


def near_target() -> Drafter:
    return Model(TableModel.random(vocab_size=7, order=1, seed=1))


@dataclass
class Round:
    """A pickled plan, what was decided, and how many tokens each row kept."""

    plan: bytes
    decision: Decision
    counts: Sequence[int] = ()


def recorded_rounds(
    model: Any, prompts: Sequence[list[int]], drafter: Drafter, rule: str, **how: Any
) -> list[Round]:
    """The rounds of an engine that answers prompts."""
    how = {"draft_length": "auto"} | how
    engine = Engine(model, drafter=drafter, rule=rules.get(rule), num_rows=NUM_ROWS, **how)
    rounds: list[Round] = []
    executor = engine._executor
    execute, commit = executor.execute, executor.commit

    def executed(plan: RoundPlan) -> Decision:
        rounds.append(Round(pickle.dumps(plan), execute(plan)))
        return rounds[-1].decision

    def committed(plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        rounds[-1].counts = counts
        commit(plan, decision, counts)

    executor.execute, executor.commit = executed, committed  # type: ignore[method-assign]
    for index, prompt in enumerate(prompts):
        sampling = fr.Sampling(seed=index, temperature=TEMPERATURES[index])
        engine.submit(
            make_request(model, prompt, AnswerOptions(sampling, max_new_tokens=NUM_TOKENS[index]))
        )
    while engine.busy:
        engine.step()
    return rounds


def follow(model: Any, rounds: Sequence[Round], drafter: Drafter, rule: str) -> int:
    """Execute recorded plans on another state; returns the number of drafted tokens."""
    num_drafted, state = 0, model.start(NUM_ROWS)
    drafting = Drafting(drafter, model, rules.get(rule))
    drafting.start(NUM_ROWS, 0, state)
    executor = Stepwise(model, state, drafting, rules.get(rule))
    for recorded in rounds:
        plan, expected = pickle.loads(recorded.plan), recorded.decision
        executor.catch_up(plan)
        decision = executor.execute(plan)
        assert [draft.tokens for draft in decision.drafts] == [d.tokens for d in expected.drafts]
        assert [draft.tree for draft in decision.drafts] == [d.tree for d in expected.drafts]
        assert list(map(list, decision.paths)) == list(map(list, expected.paths))
        assert decision.extra == expected.extra
        executor.commit(plan, decision, recorded.counts)
        num_drafted += sum(len(draft.tokens) for draft in decision.drafts)
    return num_drafted


@pytest.mark.parametrize(
    ("make", "rule", "tree"),
    [
        (near_target, "match", None),
        pytest.param(near_target, "ratio", None, marks=pytest.mark.slow),
        (near_target, "match", 8),
        (near_target, "siblings", Tree.of_branching((2, 1))),
        (lambda: NGram(min_n=1), "match", None),
        pytest.param(Suffix, "match", 8, marks=pytest.mark.slow),
    ],
)
def test_two_executors_of_one_plan_decide_alike(
    make: Callable[[], Drafter], rule: str, tree: Any
) -> None:
    """The second one has a clock of its own, a state of its own, and no policy."""
    with timed_by(ErraticClock(0)):
        rounds = recorded_rounds(target(), PROMPTS, make(), rule, tree=tree)
    plans = [pickle.loads(recorded.plan) for recorded in rounds]
    if tree is None:
        assert len({limits for plan in plans for limits in plan.drafts.limits}) > 1
    if rule == "match":
        assert any(plan.drafts.tariff is not None for plan in plans)
    with timed_by(ErraticClock(1)):
        assert follow(target(), rounds, make(), rule) > 2


def test_guesses_are_left_out_by_what_the_plan_says() -> None:
    """Some drafts of the recorded rounds were cut, and the second executor cuts them alike."""
    with timed_by(ErraticClock(0)):
        rounds = recorded_rounds(target(), PROMPTS, Suffix(), "match")
    drafts = [draft for recorded in rounds for draft in recorded.decision.drafts]
    assert any(draft.guessed is not None for draft in drafts)
    with timed_by(ErraticClock(1)):
        assert follow(target(), rounds, Suffix(), "match") > 2


def test_rows_that_begin_as_copies_do_so_in_every_process() -> None:
    """Texts are cut short and copied between the rows of a transformers model."""
    model, drafter = tiny_pair()
    beginning = list(range(1, 30))
    prompts = [beginning, [*beginning, 3, 4], [*beginning[:20], 7], [5, *beginning]]
    with timed_by(ErraticClock(0)):
        rounds = recorded_rounds(model, prompts, drafter, "match", draft_length=3)
    changes = [change for recorded in rounds for change in pickle.loads(recorded.plan).changes]
    assert {change.verb for change in changes} == {"leave", "release", "copy_prefix", "truncate"}
    with timed_by(ErraticClock(1)):
        assert follow(model, rounds, drafter, "match") > 20


def test_sampling_arrays_say_what_each_request_asks_for() -> None:
    model = target()
    samplings = [
        fr.Sampling(temperature=0.0),
        fr.Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=2**64 - 1),
        fr.Sampling(repetition_penalty=1.2),
        fr.Sampling(presence_penalty=0.5, frequency_penalty=0.25),
        fr.Sampling(logit_bias={1: 2.0}),
        fr.Sampling(bad_words=[[1, 2]]),
        fr.Sampling(min_tokens=2),
        fr.Sampling(grammar=lambda output: [1, 2]),
    ]
    requests = [
        make_request(model, [1], AnswerOptions(each, max_new_tokens=9)) for each in samplings
    ]
    requests.append(
        make_request(model, [1], AnswerOptions(fr.Sampling(), max_new_tokens=9, logprobs=0))
    )
    requests[6].tokens += [1]
    arrays = SamplingArrays.of(requests)
    assert arrays.temperature.tolist() == [0.0, 0.7, *[1.0] * 7]
    assert arrays.top_k.tolist() == [0, 5, *[0] * 7]
    assert (arrays.top_p[1], arrays.min_p[1]) == (0.9, 0.1)
    assert arrays.repetition_penalty[2] == 1.2
    assert (arrays.presence_penalty[3], arrays.frequency_penalty[3]) == (0.5, 0.25)
    assert arrays.seeds.dtype == np.uint64
    assert int(arrays.seeds[1]) == 2**64 - 1
    assert arrays.positions.tolist() == [0] * 6 + [1, 0, 0]
    assert arrays.min_tokens[6] == 2
    assert np.flatnonzero(arrays.counts_tokens).tolist() == [2, 3]
    assert np.flatnonzero(arrays.edits_logits).tolist() == [4, 5]
    assert np.flatnonzero(arrays.delays_end).tolist() == [6]
    assert np.flatnonzero(arrays.calls_python).tolist() == [7]
    assert np.flatnonzero(arrays.reports_logprobs).tolist() == [8]
    assert np.flatnonzero(arrays.needs_host).tolist() == [2, 3, 4, 5, 6, 7, 8]
    requests[6].tokens += [1]
    assert not SamplingArrays.of(requests).needs_host[6]
