"""`fr.doctor`: every prompt both ways, and a verdict on each."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_models import Architecture

import forerun as fr
from forerun.doctor import checkup
from forerun.models import TableModel

TABLE = TableModel.random(vocab_size=6, order=1, seed=2)
PROMPTS = [[1, 2, 1, 2, 1], [3]]


def test_a_sound_model() -> None:
    found = fr.doctor(TABLE, PROMPTS, max_new_tokens=20)
    assert (found.num_identical, found.num_near_ties, found.num_bugs) == (2, 0, 0)
    assert str(found) == "   0  identical\n   1  identical\n" + found.summary
    assert found.summary == "2 identical, 0 near-ties, 0 bugs in 2 prompts."
    assert sum(finding.drafted.stats.accepted for finding in found.findings) > 0
    assert all(finding.plain.stats.drafted == 0 for finding in found.findings)


def test_one_prompt_without_a_seed() -> None:
    sampling = fr.Sampling(temperature=0.9)
    found = fr.doctor(TABLE, [1, 2, 3], drafter="ngram", sampling=sampling, batch_size=2)
    assert found.num_identical == len(found.findings) == 1
    assert repr(found) == "Checkup(1 identical, 0 near-ties, 0 bugs in 1 prompts)"


def test_a_broken_one_is_called_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drafts are scored by something else: the bug that the doctor is for."""
    model = fr.wrap(Architecture("llama", "crop").build())
    score, vocab_size = type(model).score, model.vocab_size

    def broken(self: Any, state: Any, rows: Any, tokens: Any, num_logits: Any, *more: Any) -> Any:
        logits = score(self, state, rows, tokens, num_logits, *more)
        return logits.roll(1, -1) if max(num_logits) == 4 else logits

    monkeypatch.setattr(type(model), "score", broken)
    prompts = [[1, 2, 1, 2, 1, 2, 1], [3, 3, 3, 3, 3, 3]]
    found = fr.doctor(model, prompts, drafter=Knowing(vocab_size), draft_length=3)
    assert found.num_bugs == 2
    assert "bug: at output token" in str(found)


class Knowing:
    """Always guesses three tokens."""

    name = "knowing"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def start(self, *_: Any) -> None: ...

    def enter(self, *_: Any) -> None: ...

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> list[fr.drafters.Guess]:
        return [fr.drafters.Guess([1, 2, 3][: turn.budget]) for turn in turns]

    def observe(self, *_: Any) -> None: ...

    def release(self, *_: Any) -> None: ...


def test_a_rule_that_promises_less_is_refused() -> None:
    with pytest.raises(fr.UnsupportedError, match="Received ratio at temperature 1"):
        fr.doctor(TABLE, PROMPTS, rule="ratio", sampling=fr.Sampling())
    assert fr.doctor(TABLE, PROMPTS, rule="block", max_new_tokens=9).num_bugs == 0
    assert len(checkup.SAMPLES) == 4
