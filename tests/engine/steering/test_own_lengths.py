"""A draft length of a request's own: a limit for it alone, which cannot change its text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from drafting import noisy_copy
from tiny_models import Architecture

import forerun as fr
from forerun import rules
from forerun.drafters import Mixed, Model, NGram, Suffix
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.generation.intake import make_request
from forerun.models import TableModel

MODEL = Architecture("llama", "crop").build()
TARGET = fr.wrap(MODEL)
TABLE = TableModel.random(vocab_size=7, order=2, seed=0)
LIMITS = (0, 1, 3, None, "auto")
DRAFTERS: dict[str, Callable[[], Any]] = {
    "ngram": lambda: NGram(min_n=1),
    "suffix": Suffix,
    "model": lambda: Model(noisy_copy(MODEL, 0.1)),
    "mixed": lambda: Mixed(Suffix(), Model(noisy_copy(MODEL, 0.1))),
}


def answers(drafter: Any, limits: Any, rule: str = "match", **options: Any) -> list[Request]:
    """Requests that differ in their seed and in their limit, answered together."""
    engine = Engine(
        TARGET, drafter=drafter, rule=rules.get(rule), num_rows=len(limits),
        **{"draft_length": 4, **options},
    )  # fmt: skip
    requests = [
        make_request(
            TARGET,
            [1, 2, 3],
            AnswerOptions(fr.Sampling(seed=seed), max_new_tokens=16, draft_length=limit),
        )
        for seed, limit in enumerate(limits)
    ]
    for request in requests:
        engine.submit(request)
    while engine.busy:
        engine.step()
    engine.close()
    return requests


def longest(request: Request) -> int:
    return max(request.stats.drafted_by_round)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("length", [4, "auto"])
def test_no_limit_changes_a_text_and_none_is_passed(name: str, length: Any) -> None:
    plain = answers(None, LIMITS)
    done = answers(DRAFTERS[name](), LIMITS, draft_length=length)
    assert [request.output for request in done] == [request.output for request in plain]
    assert not any(request.stats.notes for request in done)
    assert longest(done[0]) == 0
    assert longest(done[1]) <= 1
    assert longest(done[2]) <= 3
    if length == 4 and name == "model":
        assert [longest(request) for request in done[1:]] == [1, 3, 4, 4]


def test_a_request_that_wants_no_drafts_is_not_shown_to_the_drafter() -> None:
    class Listening(NGram):
        def enter(self, state: Any, row: int, tokens: Any, num_prompt: int) -> None:
            entered.append(row)
            super().enter(state, row, tokens, num_prompt)

    entered: list[int] = []
    answers(Listening(), [0, None, 0])
    assert entered == [1]


@pytest.mark.parametrize("tree", [5, fr.Tree.of_branching((2, 1, 1))])
def test_a_limit_is_the_height_of_a_tree(tree: Any) -> None:
    heights: list[int] = []

    class Watched(Model):
        def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> Any:
            heights.extend(turn.height for turn in turns)
            assert all(turn.shape is None or turn.shape.height == turn.height for turn in turns)
            return super().propose(state, turns, shared_noise=shared_noise)

    done = answers(Watched(noisy_copy(MODEL, 0.1)), [2, 0], tree=tree)
    assert max(heights) == 2
    assert longest(done[0]) > 2
    assert longest(done[1]) == 0
    assert [one.output for one in done] == [one.output for one in answers(None, [2, 0])]


def test_rules_with_coins_take_ragged_lengths() -> None:
    done = answers(DRAFTERS["model"](), [0, 2, None], rule="ratio")
    assert [longest(request) for request in done] == [0, 2, 4]
    assert done[0].output == answers(None, [0], rule="ratio")[0].output


def test_a_limit_through_the_async_engine() -> None:
    async def work() -> Any:
        async with fr.AsyncEngine(TABLE, drafter=NGram(min_n=1), draft_length=3) as engine:
            with pytest.raises(fr.InputError, match="draft_length is out of range"):
                engine.submit([1], draft_length=-1)
            with pytest.raises(fr.InputError, match="owner is no text"):
                engine.submit([1], owner=7)  # type: ignore[arg-type]
            lengths: list[Any] = [0, 1, None, "auto", 9]
            return await asyncio.gather(
                *(engine.submit([1], max_new_tokens=30, draft_length=one) for one in lengths)
            )

    done = asyncio.run(asyncio.wait_for(work(), 60))
    assert [max(out.stats.drafted_by_round) for out in done] == [0, 1, 3, 3, 3]
    assert len({tuple(out.tokens) for out in done}) == 1


def test_a_limit_without_a_drafter_is_noted() -> None:
    async def work() -> Any:
        async with fr.AsyncEngine(TABLE, drafter=None) as engine:
            return await asyncio.gather(
                *(engine.submit([1], max_new_tokens=2, draft_length=one) for one in (4, 0, None))
            )

    noted, *others = asyncio.run(asyncio.wait_for(work(), 60))
    assert noted.stats.notes == ["no drafter, so draft_length did nothing"]
    assert [out.stats.notes for out in others] == [[], []]
