"""What drafters are told: a text once, then what was added to it; hidden states if they ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from drafting import Quiet, TextTurn
from test_come_and_go import engine_of
from tiny_models import Architecture

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Guess, Mixed, Outcome
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.request import Request
from forerun.generation.intake import make_request
from forerun.models import TableModel

TABLE = TableModel.random(vocab_size=7, order=2, seed=0)
PROMPTS = [[1], [2, 3, 1, 2, 3], [3, 1], [4, 4, 4]]
MODEL = Architecture("llama", "crop").build()
TARGET = fr.wrap(MODEL)


class Listener(Quiet):
    """Guesses some tokens, and notes which texts it was told of and what they became."""

    name = "listener"

    def __init__(self) -> None:
        self.entered: list[tuple[int, ...]] = []
        self.ended: list[list[int]] = []
        self.reported: list[Outcome] = []

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        super().enter(state, row, tokens, num_prompt)
        self.entered.append(tuple(tokens))

    def guess(self, turn: TextTurn) -> Guess:
        assert turn.position == len(turn.tokens) - turn.num_prompt
        return Guess([(turn.tokens[-1] + 1 + i) % 7 for i in range(turn.height)])

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        super().observe(state, outcomes)
        self.reported += outcomes

    def release(self, state: Any, row: int) -> None:
        self.ended.append(state[row].tokens)
        super().release(state, row)


@pytest.mark.parametrize("stop_tokens", [(), (5, 6)])
def test_a_text_is_told_once_and_then_what_was_added(stop_tokens: tuple[int, ...]) -> None:
    """Rows are used again, and texts end inside drafts."""
    listener = Listener()
    answers = fr.generate(
        TABLE, PROMPTS, drafter=listener, draft_length=4, batch_size=2, max_new_tokens=20,
        sampling=fr.Sampling(seed=3), stop_tokens=stop_tokens,
    )  # fmt: skip
    assert sorted(listener.entered) == sorted(map(tuple, PROMPTS))
    assert sorted(listener.ended) == sorted(a.prompt_tokens + a.tokens for a in answers)
    assert sum(len(outcome.tokens) for outcome in listener.reported) == sum(
        len(answer.tokens) for answer in answers
    )
    assert any(outcome.num_accepted for outcome in listener.reported)


def request(prompt: list[int], **options: Any) -> Request:
    sampling = fr.Sampling(temperature=0.8, seed=1)
    return make_request(TARGET, prompt, AnswerOptions(sampling, max_new_tokens=12), **options)


def test_a_prompt_read_in_parts_and_output_that_exists_are_told_whole() -> None:
    """While a long prompt is read nothing is added to its text."""
    listener, long = Listener(), [1 + i % 30 for i in range(100)]
    engine = engine_of(TARGET, listener, slowdown=1.45)
    engine.submit(request([1, 2, 3], given=[4, 5]))
    engine.step()
    engine.submit(request(long))
    while engine.busy:
        engine.step()
    assert listener.entered == [(1, 2, 3, 4, 5), tuple(long)]
    reading = [outcome for outcome in listener.reported if not outcome.tokens]
    assert len(reading) > 2
    assert all(outcome.row == 1 for outcome in reading)


class Stumbling(Listener):
    """Raises once, in its third round."""

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        super().observe(state, outcomes)
        if len(self.reported) == 3:
            raise RuntimeError("lost the thread")


def test_a_fresh_state_is_told_of_the_next_text() -> None:
    """The request after the failure is drafted for as if nothing had happened."""
    stumbling = Stumbling()
    prompts = [[1], [2, 3]]
    answers = fr.generate(
        TABLE, prompts, drafter=stumbling, draft_length=3, batch_size=1, max_new_tokens=15
    )
    assert [len(answer.stats.notes) for answer in answers] == [1, 0]
    assert stumbling.entered == [(1,), (2, 3)]
    assert stumbling.ended == [answers[1].prompt_tokens + answers[1].tokens]


class Incomplete:
    """A drafter that lacks a method."""

    name = "incomplete"

    def start(self, target: Any, num_rows: int, capacity: int, rows: Any = None) -> Any:
        return None

    def propose(self, state: Any, turns: Sequence[Any], *, shared_noise: bool) -> list[Guess]:
        return [Guess() for _ in turns]

    def observe(self, state: Any, outcomes: Sequence[Any]) -> None:
        pass

    def release(self, state: Any, row: int) -> None:
        pass


def test_a_drafter_without_enter_is_refused() -> None:
    drafter: Any = Incomplete()
    with pytest.raises(InputError, match=r"does not draft.*without enter.*write-a-drafter"):
        fr.generate(TABLE, [1], drafter=drafter)


class Reading(Listener):
    """Asks for hidden states and keeps what it is told of each row."""

    def __init__(self, *layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.states: list[torch.Tensor] = []  # of each request that has ended

    def start(self, *arguments: Any) -> Any:
        texts = super().start(*arguments)
        texts.states = {}
        return texts

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        super().observe(state, outcomes)
        for outcome in outcomes:
            known = state.states.get(outcome.row, outcome.states[:0])
            state.states[outcome.row] = torch.cat([known, outcome.states])
            assert len(state.states[outcome.row]) == outcome.num_processed

    def release(self, state: Any, row: int) -> None:
        self.states.append(state.states.pop(row))
        super().release(state, row)


def hidden_states(text: list[int], layers: Sequence[int]) -> Any:
    with torch.inference_mode():
        output = MODEL(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    return torch.cat([output.hidden_states[layer][0] for layer in layers], dim=-1)


@pytest.mark.parametrize("layers", [[(1, 0)], [(1,), (0, 2)], [(), (2,)]])
def test_hidden_states_come_with_the_outcome(layers: list[tuple[int, ...]]) -> None:
    """Each of several drafters is told those of its own layers, for all tokens but the newest."""
    drafters = [Reading(*own) if own else Listener() for own in layers]
    drafter = drafters[0] if len(drafters) == 1 else Mixed(*drafters)
    prompt = list(range(1, 25))
    prompts = [prompt, [*prompt, 3], [2, 3]]
    answers = fr.generate(
        TARGET, prompts, drafter=drafter, draft_length=3, batch_size=2, max_new_tokens=10,
        sampling=fr.Sampling(temperature=0.0), ignore_eos=True,
    )  # fmt: skip
    assert not any(answer.stats.notes for answer in answers)
    for reader in drafters:
        if isinstance(reader, Reading):
            assert len(reader.states) == len(prompts)
            for text, states in zip(reader.ended, reader.states, strict=True):
                expected = hidden_states(text, reader.layers)[: len(states)]
                assert len(states) == len(text) - 1
                np.testing.assert_allclose(states, expected, atol=1e-9)


def test_a_target_without_hidden_states_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"The hidden states of .* cannot be read"):
        fr.generate(TABLE, [1], drafter=Reading(1))
