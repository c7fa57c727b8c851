"""Computes tokens per round on texts that are not trained on, without running rounds.

One pass over a text of the target shows, for each token, how many guesses in a row would be right
if a draft started there. Stepping through the text by these numbers gives the rounds that decoding
would have taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.base.errors import InputError, explain
from forerun.train.chat import Chat
from forerun.train.course import Course
from forerun.train.prompts import TrainingPrompt, pick
from forerun.train.shards import Spoken
from forerun.train.stages import answer_each
from forerun.train.teacher import Batch, autocast

HEAT = 0.8  # the second temperature that is measured


@dataclass(frozen=True)
class HeldOut:
    """The number of held-out prompts, and the length of their answers."""

    per_group: int
    total: int  # taken from the training prompts if there is no held-out file
    num_tokens: int

    @classmethod
    def on(cls, device: Any) -> HeldOut:
        """Sizes with which measuring takes seconds on this device: smaller ones on a CPU."""
        return cls(8, 48, 128) if device.type == "cuda" else cls(2, 12, 64)


def divided(
    prompts: Sequence[TrainingPrompt], held_out: Sequence[TrainingPrompt], size: HeldOut
) -> tuple[list[TrainingPrompt], list[str]]:
    """Divide prompts into those to measure with and those to train on; no prompt is in both."""
    measured = pick(held_out, size.per_group) if held_out else _taken_out(prompts, size.total)
    kept = {prompt.text for prompt in (*measured, *held_out)}
    trained_on = [prompt.text for prompt in prompts if prompt.text not in kept]
    if prompts and not trained_on:
        wrong = "No prompt is left to train on: all of them are needed to measure with."
        cure = "Add more to --prompts, the more the better."
        raise InputError(explain(wrong, f"{len(prompts)} prompts", cure))
    return measured, list(dict.fromkeys(trained_on))


def held_out_answers(
    model: Any,
    chat: Chat,
    endings: Sequence[int],
    prompts: Sequence[TrainingPrompt],
    *,
    num_rows: int,
    seed: int,
) -> Iterator[Spoken]:
    """The target's answers to held-out prompts, greedy and sampled."""
    context = getattr(model.config, "max_position_embeddings", None) or 1 << 20
    count = min(HeldOut.on(model.device).num_tokens, context // 2)
    longest = context - count
    asked = [chat.ask(prompt.text)[-longest:] for prompt in prompts]
    for temperature in (0.0, HEAT):
        for index, text, start in answer_each(
            model,
            asked,
            endings=endings,
            temperature=temperature,
            num_rows=min(num_rows, 64),
            max_new_tokens=count,
            seed=seed,
        ):
            is_answer = np.arange(len(text)) >= start
            yield Spoken(np.array(text, np.int32), is_answer, prompts[index].group, temperature)


def _taken_out(prompts: Sequence[TrainingPrompt], count: int) -> list[TrainingPrompt]:
    """Every n-th training prompt, to be held out for measuring."""
    return list(prompts[:: max(2, len(prompts) // count)][:count])


LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
MOST_TOKENS = 16_384  # of one pass, padding included


@dataclass(frozen=True)
class HeldOutFigures:
    """Tokens per round by task group, for each draft length, at one temperature."""

    temperature: float
    by_group: dict[str, tuple[float, ...]]  # one figure per draft length

    def mean(self, length: int) -> float:
        """Mean over the groups, with equal weights."""
        return float(np.mean([row[LENGTHS.index(length)] for row in self.by_group.values()]))

    def to_dict(self) -> dict[str, object]:
        groups = {name: [round(value, 3) for value in row] for name, row in self.by_group.items()}
        return {"temperature": self.temperature, "lengths": list(LENGTHS), "groups": groups}


def measure(course: Course, spoken: Sequence[Spoken]) -> list[HeldOutFigures]:
    """The tokens per round of a drafter on held-out texts, one entry per temperature."""
    results = []
    for temperature in sorted({text.temperature for text in spoken}):
        counts: dict[str, NDArray[np.float64]] = {}
        for part in _parts([text for text in spoken if text.temperature == temperature]):
            runs = right_guesses(course, part, temperature)
            for row, text in enumerate(part):
                totals = counts.setdefault(text.group, np.zeros((len(LENGTHS), 2)))
                totals += [walk(runs[row], text.is_answer, length) for length in LENGTHS]
        by_group = {
            group: tuple(float(tokens / max(rounds, 1)) for tokens, rounds in totals)
            for group, totals in sorted(counts.items())
        }
        results.append(HeldOutFigures(temperature, by_group))
    return results


def right_guesses(
    course: Course, spoken: Sequence[Spoken], temperature: float
) -> NDArray[np.int64]:
    """How many guesses in a row are right, (B, L), for a draft that starts after token t + 1."""
    teacher = course.teacher
    device = teacher.embedding.device
    batch = Batch.of(spoken, device)
    steps = max(LENGTHS)
    right = torch.zeros((steps, *batch.tokens.shape), dtype=torch.long, device=device)
    with torch.no_grad(), autocast(device):
        hidden, final = teacher.watch(batch.tokens)
        delays = None
        if temperature > 0:
            probs, _ = teacher.laws(final[batch.rows, batch.places], temperature)
            delays = posterior_delays(probs.float(), teacher.draft_tokens, batch.next_tokens)
        outputs = course.ahead(hidden, batch.tokens, steps, batch.first)
        for step, output in enumerate(outputs):
            starts = batch.places - 1 - step
            chosen = (starts >= batch.first) & (batch.reach > step)
            rows, at = batch.rows[chosen], starts[chosen]
            logits = course.network.logits(output[rows, at - batch.first]).float()
            if delays is not None:
                logits = logits / temperature - delays[chosen].log()
            guess = teacher.draft_tokens[logits.argmax(-1)]
            right[step, rows, at] = (guess == batch.next_tokens[chosen]).long()
    return np.asarray(right.cumprod(0).sum(0).cpu().numpy())


def posterior_delays(probs: Tensor, draft_tokens: Tensor, winners: Tensor) -> Tensor:
    """Sample the target's arrival times (A, Vd), given that `winners` (A,) won its race.

    Token i arrives at E_i / p_i. If the rates sum to 1, the first arrival time is Exp(1), whichever
    token wins. Exponential distributions have no memory, so each other token arrives Exp(p_i) later
    than the first.
    """
    generator = torch.Generator(probs.device).manual_seed(0)
    first = torch.empty_like(probs[:, :1]).exponential_(generator=generator)
    rest = torch.empty_like(probs).exponential_(generator=generator)
    is_winner = draft_tokens == winners[:, None]
    return (first * probs + torch.where(is_winner, 0, rest)).clamp_min(1e-30)


def walk(runs: NDArray[np.int64], is_answer: NDArray[np.bool_], length: int) -> tuple[int, int]:
    """The numbers of tokens and rounds of an answer, without its first token, which comes from the
    prompt's pass."""
    places = np.flatnonzero(is_answer)
    tokens = rounds = 0
    at, last = int(places[0]), int(places[-1])
    while at < last:
        gained = min(int(runs[at - 1]), length, last - at - 1) + 1
        at, tokens, rounds = at + gained, tokens + gained, rounds + 1
    return tokens, rounds


def _parts(spoken: Sequence[Spoken]) -> Iterator[list[Spoken]]:
    """Groups of texts of similar length, each within MOST_TOKENS."""
    part: list[Spoken] = []
    for text in sorted(spoken, key=len):
        if part and (len(part) + 1) * len(text) > MOST_TOKENS:
            yield part
            part = []
        part.append(text)
    if part:
        yield part
