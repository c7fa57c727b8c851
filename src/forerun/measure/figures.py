"""The figures of a sweep, each under the name and by the definition of docs/measuring.md.

The repeats of a prompt are merged first, by their median, so that one slow minute counts little.
The 95% intervals then come from resampling prompts, because the next user brings other prompts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from forerun.base.arrays import HostArray
from forerun.measure.records import AnswerRecord, Cell, Interval, Run

NUM_RESAMPLES = 1000
STAGES = ("draft", "score", "verify", "commit")


@dataclass(frozen=True)
class Figures:
    """The figures of one cell; `speedup` is None where plain decoding was not run."""

    cell: Cell
    num_prompts: int
    num_repeats: int
    acceptance_rate: Interval
    acceptance_by_position: list[float]
    accepted_length_shares: list[float]  # of rounds, for accepted lengths 0, 1, ...
    tokens_per_round: Interval
    seconds_per_token: Interval
    tokens_per_second: Interval
    tokens_per_second_with_prompt: float | None  # None where a run did not read its prompt
    time_shares: dict[str, float]  # by stage; empty for a peer
    speedup: Interval | None


def figures(runs: Sequence[Run], *, group: str | None = None) -> list[Figures]:
    """The figures of every cell, in the order of first runs; `group` restricts them to one task
    group."""
    cells: dict[Cell, list[Run]] = defaultdict(list)
    for run in runs:
        answers = [answer for answer in run.answers if group in (None, answer.group)]
        if answers:
            cells[run.cell].append(replace(run, answers=answers))
    return [
        _figures(cell, cell_runs, cells.get(plain_of(cell), []))
        for cell, cell_runs in cells.items()
    ]


def groups(runs: Sequence[Run]) -> list[str]:
    """The task groups, in the order of their first appearance."""
    return list(dict.fromkeys(answer.group for run in runs for answer in run.answers))


def plain_of(cell: Cell) -> Cell:
    """The plain-decoding cell that a cell is compared with: ours, for a peer's cell too."""
    return replace(cell, drafter=None, draft_length=0, tree=None, rule="match", peer=None)


def is_plain(cell: Cell) -> bool:
    """Whether a cell is plain decoding."""
    return cell.drafter is None


def seconds_per_token(answer: AnswerRecord) -> float:
    """Seconds per token of one request, without the round that read its prompt."""
    tokens = answer.new_tokens - answer.first_tokens
    return (answer.seconds - answer.first_seconds) / tokens if tokens > 0 else float("nan")


def _figures(cell: Cell, runs: list[Run], plain: list[Run]) -> Figures:
    answers = [answer for run in runs for answer in run.answers]
    pace, plain_pace = pace_by_prompt(runs), pace_by_prompt(plain)
    both = [prompt for prompt in pace if prompt in plain_pace]
    drafted_paces = np.array([pace[prompt] for prompt in both])
    plain_paces = np.array([plain_pace[prompt] for prompt in both])
    spent = {
        stage: sum(answer.seconds_by_stage.get(stage, 0.0) for answer in answers)
        for stage in STAGES
    }
    total = sum(spent.values())
    return Figures(
        cell=cell,
        num_prompts=len({answer.prompt for answer in answers}),
        num_repeats=len({run.repeat for run in runs}),
        acceptance_rate=_count_ratio(answers, "accepted", "drafted"),
        acceptance_by_position=_by_position(answers),
        accepted_length_shares=_length_shares(answers),
        tokens_per_round=_count_ratio(answers, "new_tokens", "rounds"),
        seconds_per_token=ratio_interval(np.array(list(pace.values())), np.ones(len(pace))),
        tokens_per_second=_throughput(runs),
        tokens_per_second_with_prompt=_with_prompt(runs),
        time_shares={stage: part / total for stage, part in spent.items()} if total else {},
        speedup=ratio_interval(plain_paces, drafted_paces) if both else None,
    )


def pace_by_prompt(runs: Sequence[Run]) -> dict[str, float]:
    """Seconds per token of each prompt, as the median over its repeats."""
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for answer in run.answers:
            if (value := seconds_per_token(answer)) == value:
                by_prompt[answer.prompt].append(value)
    return {prompt: median(values) for prompt, values in by_prompt.items()}


def _count_ratio(answers: Sequence[AnswerRecord], above: str, below: str) -> Interval:
    """The ratio of two counts; the repeats of a prompt are added up, because they are not
    independent."""
    counts: dict[str, HostArray] = defaultdict(lambda: np.zeros(2))
    for answer in answers:
        counts[answer.prompt] += (getattr(answer, above), getattr(answer, below))
    table = np.array(list(counts.values()))
    return ratio_interval(table[:, 0], table[:, 1])


def speed_by_batch(runs: Sequence[Run]) -> dict[tuple[str, ...], HostArray]:
    """The tokens and seconds (2,) of each batch of prompts without its first round, as medians over
    repeats."""
    batches: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        tokens = sum(answer.new_tokens - answer.first_tokens for answer in run.answers)
        seconds = max(answer.seconds - answer.first_seconds for answer in run.answers)
        batches[tuple(answer.prompt for answer in run.answers)].append((tokens, seconds))
    return {prompts: np.median(repeats, axis=0) for prompts, repeats in batches.items()}


def _throughput(runs: Sequence[Run]) -> Interval:
    """Tokens per second of the whole batch, without its first round."""
    table = np.array(list(speed_by_batch(runs).values()))
    return ratio_interval(table[:, 0], table[:, 1])


def _with_prompt(runs: Sequence[Run]) -> float | None:
    """Tokens per second of whole calls, prompts included; None if a call reused a stored prompt."""
    if not all(run.read_prompts for run in runs):
        return None
    tokens = sum(answer.new_tokens for run in runs for answer in run.answers)
    return _ratio(tokens, sum(run.seconds for run in runs))


def ratio_interval(above: HostArray, below: HostArray, *, seed: int = 0) -> Interval:
    """sum(above) / sum(below) over units (N,), with the 95% interval from resampling units."""
    n = len(above)
    if n == 0 or below.sum() <= 0:
        return Interval(0.0, 0.0, 0.0)
    mean = float(above.sum() / below.sum())
    if n == 1:
        return Interval(mean, mean, mean)
    picked = np.random.default_rng(seed).integers(n, size=(NUM_RESAMPLES, n))
    ratios = above[picked].sum(axis=1) / np.maximum(below[picked].sum(axis=1), 1e-300)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def _by_position(answers: Sequence[AnswerRecord]) -> list[float]:
    longest = max((len(answer.reached_by_position) for answer in answers), default=0)
    reached, accepted = np.zeros(longest), np.zeros(longest)
    for answer in answers:
        reached[: len(answer.reached_by_position)] += answer.reached_by_position
        accepted[: len(answer.accepted_by_position)] += answer.accepted_by_position
    return [_ratio(a, r) for a, r in zip(accepted.tolist(), reached.tolist(), strict=True)]


def _length_shares(answers: Sequence[AnswerRecord]) -> list[float]:
    lengths = [length for answer in answers for length in answer.accepted_by_round]
    if not lengths:
        return []
    shares: list[float] = (np.bincount(lengths) / len(lengths)).tolist()
    return shares


def _ratio(above: float, below: float) -> float:
    return above / below if below else 0.0
