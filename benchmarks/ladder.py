"""The ladder: one drafter, the same prompts, and rule by rule what its guesses are worth.

From the bottom: the likeliest token, kept if it equals the target's; the token that wins the race
under the target's noise; `ratio` and `block`, which divide by the drafter's law; then trees of the
likeliest tokens, and trees of those that arrive first in the race.  All are lossless.

    python benchmarks/ladder.py [SPEC_BENCH.jsonl] [--drafter heads] [--temperature 0.8 1.0]
        [--per-group 8] [--max-new-tokens 64] [--batch-size 1] [--only RUNG ...] [--output ladder]

Tokens per second are reported for single requests only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import forerun as fr
from forerun.drafters.base import Guess, Turn
from forerun.drafters.passing_on import PassingOn
from forerun.generation.choosing import make_drafter
from forerun.loading.default import default_model
from forerun.measure.job_runner import ReadOnce
from forerun.prompts import GROUPS
from forerun.sampling.options import Sampling
from machine import save
from spec_bench import read
from turns import encode

NUM_NODES, DEPTH = 16, 5
NUM_RESAMPLED = 4000
RUNGS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": None},
    "the likeliest, kept if equal": {"is_likeliest": True},
    "raced": {},
    "ratio": {"rule": "ratio"},
    "block": {"rule": "block"},
    "tree of the likeliest": {"is_likeliest": True, "tree": NUM_NODES},
    "raced tree": {"tree": NUM_NODES},
}


GAINS = {
    "raced chains over the likeliest": ("raced", "the likeliest, kept if equal"),
    "raced trees over trees of the likeliest": ("raced tree", "tree of the likeliest"),
}


@dataclass
class Likeliest(PassingOn):
    """Asks a drafter for its likeliest tokens, whatever noise the target will meet."""

    greedy: dict[int, tuple[Sampling, Sampling]] = field(default_factory=dict)
    """Options by their identity, by which a drafter may know them again, and the same greedily."""

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        for turn in turns:
            if id(turn.sampling) not in self.greedy:
                both = turn.sampling, replace(turn.sampling, temperature=0.0)
                self.greedy[id(turn.sampling)] = both
        asked = [replace(turn, sampling=self.greedy[id(turn.sampling)][1]) for turn in turns]
        return super().propose(state, asked, shared_noise=shared_noise)


def climb(
    target: Any,
    drafter: Any,
    prompts: Sequence[Any],
    temperature: float,
    size: int,
    batch_size: int,
    rungs: Sequence[str],
) -> dict[str, Any]:
    """For each rung the statistics of all prompts, in their order."""
    found: dict[str, Any] = {}
    samplings = [Sampling(temperature=temperature, seed=seed) for seed in range(len(prompts))]
    for name in rungs:
        how: dict[str, Any] = {"draft_length": DEPTH, "drafter": drafter} | RUNGS[name]
        if how.pop("is_likeliest", False):
            how["drafter"] = Likeliest(drafter)
        if how["drafter"] is None:
            del how["draft_length"]
        texts = [text for _, text in prompts]
        answers = fr.generate(
            target, texts, sampling=samplings, max_new_tokens=size, batch_size=batch_size, **how
        )
        found[name] = answers
        print(f"  {name:32}{rate(np.array([counts(each) for each in answers])):.2f}", flush=True)
    return found


def counts(answer: Any) -> tuple[int, int]:
    """Tokens and rounds of an answer, without the first round, which reads the prompt."""
    first = answer.stats.emitted_by_round[0]
    return answer.stats.emitted - first, answer.stats.rounds - 1


def rate(pairs: Any) -> float:
    """Tokens per round over all prompts (N, 2)."""
    return float(pairs[..., 0].sum() / pairs[..., 1].sum())


def interval(one: Any, other: Any) -> dict[str, float]:
    """Tokens per round of `one` over those of `other`, and where 95% of resampled prompts lie."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(one), size=(NUM_RESAMPLED, len(one)))
    ratios = [rate(one[rows]) / rate(other[rows]) for rows in drawn]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {"ratio": rate(one) / rate(other), "low": float(low), "high": float(high)}


def slots(answers: Sequence[Any]) -> list[float]:
    """Acceptance of each slot of a draft that was reached."""
    reached, accepted = np.zeros(DEPTH), np.zeros(DEPTH)
    for answer in answers:
        for total, part in (
            (reached, answer.stats.reached_by_position),
            (accepted, answer.stats.accepted_by_position),
        ):
            total[: len(part)] += part[:DEPTH]
    return [round(float(value), 3) for value in accepted / np.maximum(reached, 1)]


def table(found: dict[str, Any], groups: Sequence[str], is_alone: bool) -> dict[str, Any]:
    """Per rung: tokens per round in all, by group, and acceptance by slot."""
    rows: dict[str, Any] = {}
    for name, answers in found.items():
        pairs = np.array([counts(each) for each in answers])
        seconds = sum(each.total for a in answers for each in a.stats.seconds_by_round[1:])
        rows[name] = {
            "tokens_per_round": rate(pairs),
            "by_group": {
                group: rate(pairs[[own == group for own in groups]])
                for group in dict.fromkeys(groups)
            },
            "acceptance_by_slot": slots(answers),
        }
        if is_alone:
            rows[name]["tokens_per_second"] = float(pairs[:, 0].sum() / seconds)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", help="Spec-Bench's file (default: our own prompts)")
    parser.add_argument("--drafter", default="heads")
    parser.add_argument("--per-group", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.8, 1.0])
    parser.add_argument("--only", nargs="*", default=list(RUNGS), choices=RUNGS, metavar="RUNG")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--output", default="ladder", help="name of the JSON file")
    args = parser.parse_args()
    target = ReadOnce(default_model()).target
    drafter = make_drafter(args.drafter)
    asked = [(group, encode(target, text)) for group, text in read(args.prompts, args.per_group)]
    groups, tables = [group for group, _ in asked], {}
    for temperature in args.temperature:
        print(f"temperature {temperature:g}, tokens per round")
        size = args.max_new_tokens
        found = climb(target, drafter, asked, temperature, size, args.batch_size, args.only)
        pairs = {name: np.array([counts(a) for a in answers]) for name, answers in found.items()}
        gains = {}
        for name, (one, other) in GAINS.items():
            if one in pairs and other in pairs:
                gains[name] = interval(pairs[one], pairs[other])
                print("  {}: {ratio:.3f} ({low:.3f} to {high:.3f})".format(name, **gains[name]))
        tables[str(temperature)] = {
            "prompts": len(asked),
            "rungs": table(found, groups, args.batch_size == 1),
            "gains": gains,
        }
    about = {"drafter": Path(args.drafter).name, "max_new_tokens": args.max_new_tokens}
    about |= {"nodes": NUM_NODES, "depth": DEPTH, "groups": list(GROUPS)}
    save(args.output, {**about, "results": tables})


if __name__ == "__main__":
    main()
