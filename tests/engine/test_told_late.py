"""Rounds without drafts: a drafter is told of them together, and guesses as if told at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from drafting import noisy_copy
from test_come_and_go import MODEL, TARGET, engine_of, finish, plain, request_of
from test_told import Listener
from tiny_heads import save_drafter, tiny_llama

import forerun as fr
from forerun.base.clock import ErraticClock, timed_by
from forerun.drafters import (
    EarlyExit,
    Forced,
    Guess,
    Heads,
    Mixed,
    Model,
    NGram,
    Outcome,
    Quantized,
    Suffix,
    Turn,
)  # fmt: skip
from forerun.engine import drafting
from forerun.engine.drafting import Drafting
from forerun.engine.request import Request
from forerun.engine.steering.policy import Choice, PayingPolicy
from forerun.testing import Witness

LONG = [1 + i % 30 for i in range(100)]
PROMPTS = [[1, 2, 3, 1, 2, 3], LONG, [5, 6, 5, 6, 5], LONG[:60], [7, 8, 9]]
COUNT = 24


class Rarely(PayingPolicy):
    """Asks for three guesses in one round of some, 0 for never."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.num_rounds = every, 0

    def choose(self, rows: Sequence[int], *_: Any, **__: Any) -> Choice:
        self.num_rounds += 1
        is_asked = self.every and self.num_rounds % self.every == 0
        return Choice([3 if is_asked else 0] * len(rows))


def answers(target: Any, drafter: Any, every: int) -> list[Request]:
    """Requests that share two rows, the long ones read in parts, and a drafter asked rarely."""
    how: dict[str, Any] = {"draft_length": "auto", "slowdown": 1.45}
    engine = engine_of(target, drafter, num_rows=2, **how)
    engine._planner._policy = Rarely(every)
    requests = [
        request_of(target, prompt, seed, max_new_tokens=COUNT)
        for seed, prompt in enumerate(PROMPTS)
    ]
    for request in requests:
        engine.submit(request)
    with timed_by(ErraticClock(0)):
        finish(engine)
    engine.close()
    return requests


def small_heads(folder: Path) -> Any:
    save_drafter(folder, tiny_llama(seed=3), like_target=True)
    return Heads(folder)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "ngram": lambda _: NGram(),
    "suffix": lambda _: Suffix(),
    "model": lambda _: Model(noisy_copy(MODEL, 0.1)),
    "early exit": lambda _: EarlyExit(1),
    "quantized": lambda _: Quantized(),
    "heads": small_heads,
    "heads and suffix": lambda folder: Forced(Mixed(small_heads(folder), Suffix())),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("suffix", "quantized") else ())
        for name in MAKERS  # one is heard beside heads, the other is one model more
    ],
)
def test_late_news_change_no_guess(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = fr.wrap(tiny_llama(seed=3)) if "heads" in name else TARGET
    late = Witness(MAKERS[name](tmp_path), target.vocab_size)
    requests = answers(target, late, every=5)
    monkeypatch.setattr(Drafting, "can_wait", lambda *_: False)
    at_once = Witness(MAKERS[name](tmp_path), target.vocab_size)
    others = answers(target, at_once, every=5)
    assert [one.output for one in requests] == [one.output for one in others]
    assert not any(one.stats.notes for one in requests)
    assert [(seen.text, seen.answer) for seen in late.seen] == [
        (seen.text, seen.answer) for seen in at_once.seen
    ]
    assert sum(len(seen.guess.tokens) for seen in late.seen) > 4, "it has guessed something"


class Hearing(Listener):
    """Reads hidden states too, and notes how often it is told something."""

    layers = (1, 0)

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = self.num_told = self.most_tokens = 0
        self.states: dict[int, Any] = {}
        self.heard: list[Any] = []

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        self.num_asked += 1
        return super().propose(state, turns, shared_noise=shared_noise)

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        super().observe(state, outcomes)
        self.num_told += 1
        for outcome in outcomes:
            self.most_tokens = max(self.most_tokens, len(outcome.tokens))
            known = self.states.get(outcome.row, outcome.states[:0])
            self.states[outcome.row] = torch.cat([known, outcome.states])
            assert len(self.states[outcome.row]) == outcome.num_processed

    def release(self, state: Any, row: int) -> None:
        self.heard.append(self.states.pop(row))
        super().release(state, row)


def hidden_states(text: list[int]) -> Any:
    with torch.inference_mode():
        output = MODEL(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    return torch.cat([output.hidden_states[layer][0] for layer in Hearing.layers], dim=-1)


def check_whole(hearing: Hearing, requests: list[Request]) -> None:
    """The drafter was told the whole text of every request, and the states of all its tokens."""
    for seed, request in enumerate(requests):
        assert request.output == plain(TARGET, PROMPTS[seed], seed, COUNT)
    assert sorted(hearing.ended) == sorted(request.tokens for request in requests)
    for text, states in zip(hearing.ended, hearing.heard, strict=True):
        assert len(states) == len(text) - 1
        torch.testing.assert_close(states, hidden_states(text)[:-1], atol=1e-9, rtol=0)


@pytest.mark.parametrize("every", [0, 7])
def test_texts_and_states_are_told_whole_and_seldom(every: int) -> None:
    """Also of requests that end before the drafter was asked: it may learn from them."""
    hearing = Hearing()
    check_whole(hearing, requests := answers(TARGET, hearing, every))
    assert hearing.num_asked > 0 or every == 0
    assert hearing.num_told <= 2 * hearing.num_asked + len(requests)


@pytest.mark.parametrize("every", [0, 50])
def test_states_that_are_kept_are_bounded(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round without drafts adds one token and one state at least, so four tokens are the most."""
    monkeypatch.setattr(drafting, "MOST_STATES", 4)
    hearing = Hearing()
    check_whole(hearing, answers(TARGET, hearing, every))
    assert hearing.num_asked == (1 if every else 0)
    assert hearing.most_tokens == 4


class Deaf(Listener):
    """Fails when it is told of several rounds at once."""

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        super().observe(state, outcomes)
        if any(len(outcome.tokens) > 4 for outcome in outcomes):
            raise RuntimeError("too much at once")


@pytest.mark.parametrize("every", [pytest.param(0, marks=pytest.mark.slow), 7])
def test_a_drafter_that_fails_on_late_news_changes_no_text(every: int) -> None:
    with pytest.warns(RuntimeWarning, match="too much at once"):
        requests = answers(TARGET, Deaf(), every)
    for seed, request in enumerate(requests):
        assert request.output == plain(TARGET, PROMPTS[seed], seed, COUNT)
