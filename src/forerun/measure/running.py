"""One timed run of a sweep: a batch of prompts in one cell."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.drafters.base import Drafter
from forerun.engine.results import Generation
from forerun.generation.generate import generate
from forerun.measure.records import AnswerRecord, Cell, Run, Sample, Token
from forerun.sampling.options import Sampling


@dataclass(frozen=True)
class Question:
    """A prompt as the target reads it, with the seed of its answer."""

    id: str
    group: str
    text: str
    tokens: list[int]
    seed: int


def run_cell(
    target: Any,
    drafter: Drafter | None,
    cell: Cell,
    questions: Sequence[Question],
    *,
    repeat: int,
    max_new_tokens: int,
) -> Run:
    """Answer the questions in one call, and record counts and seconds."""
    start = time.perf_counter()
    generations = _answers(target, drafter, cell, questions, max_new_tokens)
    seconds = time.perf_counter() - start
    notes = list(
        dict.fromkeys(note for generation in generations for note in generation.stats.notes)
    )
    answers = [_answer(*pair) for pair in zip(questions, generations, strict=True)]
    return Run(cell, repeat, seconds, answers, notes)


def sample_cell(
    target: Any, drafter: Drafter | None, cell: Cell, question: Question, *, max_new_tokens: int
) -> Sample:
    """One answer token by token, with probabilities; they cost time, so it is not a timed run."""
    (generation,) = _answers(target, drafter, cell, [question], max_new_tokens, logprobs=0)
    tokenizer = getattr(target, "tokenizer", None)
    scored = zip(generation.tokens, generation.fates, generation.logprobs or (), strict=True)
    tokens = [
        Token(_text(tokenizer, token), fate.value, min(1.0, math.exp(choice.logprob)))
        for token, fate, choice in scored
    ]
    return Sample(cell, question.id, question.text, tokens)


def digest(tokens: Sequence[int]) -> str:
    """A short hash of a token sequence; equal sequences have equal digests."""
    return hashlib.blake2b(",".join(map(str, tokens)).encode(), digest_size=8).hexdigest()


def _answers(
    target: Any,
    drafter: Drafter | None,
    cell: Cell,
    questions: Sequence[Question],
    max_new_tokens: int,
    logprobs: int | None = None,
) -> list[Generation]:
    """The generations for the questions of one batch, in the setting of a cell."""
    length: Any = cell.draft_length
    generations: list[Generation] = generate(
        target,
        [question.tokens for question in questions],
        drafter=drafter,
        draft_length=length,
        tree=cell.tree,
        rule=cell.rule,
        sampling=[Sampling(cell.temperature, seed=question.seed) for question in questions],
        max_new_tokens=max_new_tokens,
        batch_size=cell.batch,
        logprobs=logprobs,
    )
    return generations


def _answer(question: Question, generation: Generation) -> AnswerRecord:
    """The record of one generation: counts, and seconds as observed."""
    stats = generation.stats
    first = stats.accepted_by_round[0] + 1
    return AnswerRecord(
        prompt=question.id,
        group=question.group,
        prompt_tokens=len(generation.prompt_tokens),
        new_tokens=len(generation.tokens),
        rounds=stats.rounds,
        drafted=stats.drafted,
        accepted=stats.accepted,
        reached_by_position=stats.reached_by_position,
        accepted_by_position=stats.accepted_by_position,
        drafted_by_round=stats.drafted_by_round,
        accepted_by_round=stats.accepted_by_round,
        first_tokens=min(first, len(generation.tokens)),
        first_seconds=stats.seconds_by_round[0].total,
        seconds=stats.seconds.total,
        seconds_by_stage=dict(vars(stats.seconds)),
        digest=digest(generation.tokens),
    )


def _text(tokenizer: Any, token: int) -> str:
    return str(token) if tokenizer is None else str(tokenizer.decode([token]))
