"""Runs the same cells with transformers: plain, prompt lookup, and assisted by a model.

Its `generate` does not report rounds, but passes the tokens of each step to a streamer.  The time
of each call is the clock, and the number of tokens in it is what the round emitted.  Assisted and
lookup modes exist at batch 1 only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.base import Drafter
from forerun.drafters.model import Model
from forerun.drafters.ngram import NGram
from forerun.generation.intake import ending_tokens
from forerun.measure.records import AnswerRecord, Cell, Run
from forerun.measure.running import Question, digest


def can_run(cell: Cell, drafter: Drafter | None) -> bool:
    """Whether transformers has a mode that corresponds to this cell."""
    if cell.tree is not None or cell.draft_length == "auto":
        return False
    if isinstance(drafter, Model):
        return cell.batch == 1 and _has_generate(drafter.model)
    return drafter is None or (cell.batch == 1 and isinstance(drafter, NGram))


def check_peer(target: Any) -> None:
    """Refuse a target that transformers cannot run."""
    if not _has_generate(target):
        cure = "Use a Hugging Face model, or leave out --against."
        wrong = "The target has no `generate` of transformers to compare with."
        raise UnsupportedError(explain(wrong, target.name, cure))


def _has_generate(model: Any) -> bool:
    return hasattr(getattr(model, "model", None), "generate")


@dataclass
class Steps:
    """A streamer that records the time and size of each step; the prompt is the first step."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def put(self, tokens: Any) -> None:
        self.times.append(time.perf_counter())
        self.counts.append(int(tokens.numel()))

    def end(self) -> None:
        """Does nothing, because nothing is buffered."""


def run_transformers(
    target: Any,
    drafter: Drafter | None,
    cell: Cell,
    questions: Sequence[Question],
    *,
    repeat: int,
    max_new_tokens: int,
) -> Run:
    """Answer the questions with the `generate` method of transformers."""
    import torch

    model, endings = target.model, ending_tokens(target)
    padding = endings[0] if endings else 0
    longest = max(len(question.tokens) for question in questions)
    rows = [[padding] * (longest - len(q.tokens)) + q.tokens for q in questions]
    masks = [[0] * (longest - len(q.tokens)) + [1] * len(q.tokens) for q in questions]
    steps = Steps()
    torch.manual_seed(questions[0].seed)
    start = time.perf_counter()
    with torch.inference_mode():
        sequences = model.generate(
            torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor(masks, device=model.device),
            generation_config=_config(cell, drafter, endings, padding, max_new_tokens),
            streamer=steps,
            **_assistant(drafter, cell),
        )
    outputs = sequences[:, longest:].tolist()
    seconds = time.perf_counter() - start
    answers = [
        _answer(question, _until(output, endings), steps, start, seconds, len(questions))
        for question, output in zip(questions, outputs, strict=True)
    ]
    return Run(cell, repeat, seconds, answers)


def _config(
    cell: Cell, drafter: Drafter | None, endings: Sequence[int], padding: int, max_new_tokens: int
) -> Any:
    """Options that set the sampling law explicitly, so that no checkpoint default changes it."""
    from transformers import GenerationConfig

    options: dict[str, Any] = {"do_sample": False}
    if cell.temperature > 0:
        options = {"do_sample": True, "temperature": cell.temperature, "top_k": 0, "top_p": 1.0}
    if isinstance(drafter, NGram):
        options["prompt_lookup_num_tokens"] = cell.draft_length
        options["max_matching_ngram_size"] = drafter.max_n
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=list(endings) or None,
        pad_token_id=padding,
        **options,
    )


def _assistant(drafter: Drafter | None, cell: Cell) -> dict[str, Any]:
    """The drafting model as assistant, with the cell's fixed draft length."""
    if not isinstance(drafter, Model):
        return {}
    inner: Any = drafter.model
    config = inner.model.generation_config
    config.num_assistant_tokens = cell.draft_length
    config.num_assistant_tokens_schedule = "constant"
    config.assistant_confidence_threshold = 0.0
    return {"assistant_model": inner.model}


def _until(output: list[int], endings: Sequence[int]) -> list[int]:
    """The answer up to its first ending token, without padding."""
    ends = [place for place, token in enumerate(output) if token in endings]
    return output[: ends[0] + 1] if ends else output


def _answer(
    question: Question,
    output: list[int],
    steps: Steps,
    start: float,
    seconds: float,
    num_rows: int,
) -> AnswerRecord:
    """The record of one answer of transformers, from the times at which its tokens came."""
    if num_rows == 1:
        gained = steps.counts[1:]
    else:  # each row emits one token per step until its own end
        gained, seconds = [1] * len(output), steps.times[len(output)] - start
    return AnswerRecord(
        prompt=question.id,
        group=question.group,
        prompt_tokens=len(question.tokens),
        new_tokens=len(output),
        rounds=len(gained),
        drafted=0,  # not reported by transformers
        accepted=len(output) - len(gained),
        reached_by_position=[],
        accepted_by_position=[],
        drafted_by_round=[],
        accepted_by_round=[count - 1 for count in gained],
        first_tokens=min(gained[0], len(output)),
        first_seconds=steps.times[1] - start,
        seconds=seconds,
        seconds_by_stage={},
        digest=digest(output),
    )
