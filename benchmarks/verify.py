"""`fr.verify` against the usual Python loop, and against the bytes it has to read.

The peer is the loop every tutorial has: one draft token after the other, `p / q` against a random
number, and NumPy's `choice` for the token at the end.  Both judge the same rounds of a vocabulary
of 128,256 tokens in turn, one call each, so that whatever else the machine is doing hits both.

    python benchmarks/verify.py            prints a table and writes verify.json
    python benchmarks/verify.py --quick    fewer repeats, writes nothing
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import array_api_compat as compat
import numpy as np

import forerun as fr
from forerun.noise import race as noise
from forerun.noise.race import Purpose
from forerun.rules.rows import Dense
from machine import result_file, write

XP = compat.array_namespace(np.empty(0))
DRAFT_LENGTH, VOCAB_SIZE = 5, 128_256
AGREEMENT = {"close": 0.5, "typical": 1.2, "far": 2.5}  # spread of the drafter's logit errors
RULES = ("match", "ratio", "block")

Timings = dict[str, list[float]]


@dataclass
class Round:
    """A batch of drafted rounds; `shared` has the drafts of a drafter that knows the noise."""

    tokens: np.ndarray
    draft: np.ndarray
    target: np.ndarray
    shared: dict[int, np.ndarray] = field(default_factory=dict)

    def shared_draft(self, seed: int) -> fr.Draft:
        """What the drafter's law says under the target's noise of this seed."""
        if seed not in self.shared:
            key = noise.seed_key(XP, [seed] * len(self.tokens), None)
            races = [
                noise.race(XP, self.draft[:, slot], key, np.full(len(self.tokens), slot))
                for slot in range(DRAFT_LENGTH)
            ]
            self.shared[seed] = np.stack(races, axis=1)
        return fr.Draft.shared(self.shared[seed])


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def make_round(seed: int, num_rows: int, spread: float) -> Round:
    """Rows like a language model's: a power law over ranks, sharper at some places than others."""
    rng = np.random.default_rng(seed)
    ranks = -np.log(np.arange(1, VOCAB_SIZE + 1, dtype=np.float32))
    target = np.empty((num_rows, DRAFT_LENGTH + 1, VOCAB_SIZE), dtype=np.float32)
    draft = np.empty((num_rows, DRAFT_LENGTH, VOCAB_SIZE), dtype=np.float32)
    tokens = np.empty((num_rows, DRAFT_LENGTH), dtype=np.int64)
    for row, slot in np.ndindex(target.shape[:2]):
        logits = np.float32(rng.uniform(1.3, 3.0)) * ranks[rng.permutation(VOCAB_SIZE)]
        target[row, slot] = softmax(logits)
        if slot < DRAFT_LENGTH:
            error = spread * rng.standard_normal(VOCAB_SIZE, dtype=np.float32)
            draft[row, slot] = softmax(logits + error)
            running = np.cumsum(draft[row, slot], dtype=np.float64)
            tokens[row, slot] = np.searchsorted(running, rng.random() * running[-1], side="right")
    return Round(tokens, draft, target)


def peer(rng: np.random.RandomState, tokens: Any, draft: Any, target: Any) -> list[int]:
    """One sequence, as the tutorials have it."""
    emitted: list[int] = []
    for slot, token in enumerate(tokens):
        chance = target[slot][token] / (draft[slot][token] + 1e-10)
        if rng.random_sample() < min(1.0, chance):
            emitted.append(int(token))
            continue
        owed = np.maximum(target[slot] - draft[slot], 0.0)
        mass = owed.sum()
        law = target[slot] if mass < 1e-10 else owed / mass
        return [*emitted, int(rng.choice(VOCAB_SIZE, p=law))]
    return [*emitted, int(rng.choice(VOCAB_SIZE, p=target[len(tokens)]))]


def interleave(contenders: dict[str, Callable[[int], Any]], repeats: int) -> Timings:
    """Seconds of each contender's turns, one turn each, starting with another one every time.

    Processor time of this one thread: waiting for a core that somebody else has does not count.
    """
    names, found = list(contenders), {name: list[float]() for name in contenders}
    for turn in range(-1, repeats):  # the first lap warms up
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.thread_time()
            contenders[name](turn % repeats)
            if turn >= 0:
                found[name].append(time.thread_time() - start)
    return found


def rows_read(call: Callable[[], Any]) -> int:
    """How many whole rows a call reads, counted in a run that is not timed."""
    count, original = 0, Dense.take

    def counting(self: Dense, rows: Any, slots: Any) -> Any:
        nonlocal count
        count += rows.shape[0]
        return original(self, rows, slots)

    Dense.take = counting  # type: ignore[method-assign]
    try:
        call()
    finally:
        Dense.take = original  # type: ignore[method-assign]
    return count


def summary(seconds: list[float]) -> dict[str, float]:
    low, middle, high = (float(q) * 1e3 for q in np.quantile(seconds, [0.25, 0.5, 0.75]))
    return {"median_ms": round(middle, 4), "q1_ms": round(low, 4), "q3_ms": round(high, 4)}


def compare(num_rows: int, level: str, repeats: int) -> dict[str, Any]:
    """Every rule against the peer on the same rounds, and against reading the rows it needs."""
    rng = np.random.RandomState(0)
    count = 4 if num_rows == 1 else 1
    rounds = [make_round(seed, num_rows, AGREEMENT[level]) for seed in range(count)]

    def ours(rule: str) -> Callable[[int], fr.Verdict]:
        def call(turn: int) -> fr.Verdict:
            made = rounds[turn % count]
            draft = (
                made.shared_draft(turn)
                if rule == "match"
                else fr.Draft.sampled(made.tokens, made.draft)
            )
            return fr.verify(draft, made.target, rule=rule, seed=turn)

        return call

    def theirs(turn: int) -> None:
        made = rounds[turn % count]
        for row in range(num_rows):
            peer(rng, made.tokens[row], made.draft[row], made.target[row])

    def reading(turn: int) -> None:
        """One target row of every sequence."""
        for row in range(num_rows):
            rounds[turn % count].target[row, turn % (DRAFT_LENGTH + 1)].max()

    calls = {rule: ours(rule) for rule in RULES}
    for turn in range(repeats):
        rounds[turn % count].shared_draft(turn)
    timings = interleave({"peer": theirs, "reading": reading, **calls}, repeats)
    turns = range(min(repeats, 8))
    read = {r: np.mean([rows_read(lambda: calls[r](turn)) for turn in turns]) for r in RULES}  # noqa: B023
    per_row = float(np.median(timings["reading"])) / num_rows
    overlap = np.mean([np.minimum(m.target[:, :-1], m.draft).sum(axis=2).mean() for m in rounds])
    result: dict[str, Any] = {
        "batch": num_rows,
        "agreement": level,
        "overlap_of_laws": round(float(overlap), 3),
        "repeats": repeats,
        "peer": summary(timings["peer"]),
        "reading_gb_per_s": round(VOCAB_SIZE * 4 / per_row / 1e9, 1),
        "rules": {},
    }
    for rule in RULES:
        pairs = np.array(timings[rule]) / np.array(timings["peer"])
        accepted = [float(np.mean(calls[rule](turn).num_accepted)) for turn in turns]
        result["rules"][rule] = summary(timings[rule]) | {
            "ratio_to_peer": round(float(np.median(pairs)), 3),
            "ratio_q1": round(float(np.quantile(pairs, 0.25)), 3),
            "ratio_q3": round(float(np.quantile(pairs, 0.75)), 3),
            "accepted_per_sequence": round(float(np.mean(accepted)), 2),
            "rows_read": round(float(read[rule]), 1),
            "times_of_reading": round(float(np.median(timings[rule]) / (read[rule] * per_row)), 1),
        }
    return result


def noise_costs(repeats: int) -> dict[str, Any]:
    """A row of uniforms, and races over rows of different shape."""
    made = make_round(0, 1, 1.0)
    peaky = made.target[:, 0]
    flat = np.full_like(peaky, 1 / VOCAB_SIZE)
    kept = np.argsort(-peaky[0])[:50]
    top = np.zeros_like(peaky)
    top[0, kept] = peaky[0, kept] / peaky[0, kept].sum()
    keys = [noise.seed_key(XP, [seed], None) for seed in range(repeats)]

    def racing(weights: np.ndarray) -> Callable[[int], Any]:
        return lambda turn: noise.race(XP, weights, keys[turn], np.array([turn]))

    timings = interleave(
        {
            "uniform_row": lambda turn: noise.uniform_row(turn, 0, VOCAB_SIZE, Purpose.TARGET),
            "race_peaky": racing(peaky),
            "race_flat": racing(flat),
            "race_top_50": racing(top),
        },
        repeats,
    )
    return {name: summary(seconds) for name, seconds in timings.items()}


def machine() -> dict[str, Any]:
    """Where this ran: ratios travel, milliseconds do not."""
    names = (
        [
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        if Path("/proc/cpuinfo").exists()
        else []
    )
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "forerun": fr.__version__,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def checks(results: list[dict[str, Any]], costs: dict[str, Any]) -> dict[str, bool]:
    """What this benchmark is there to show."""

    def worst(batch: int, rule: str) -> float:
        return max(r["rules"][rule]["ratio_to_peer"] for r in results if r["batch"] == batch)

    return {
        "ratio is never slower than the loop at batch 1": worst(1, "ratio") <= 1,
        "ratio is at least twice as fast at batch 32": worst(32, "ratio") <= 0.5,
        "a row of 128,256 numbers takes 3 ms at most": costs["uniform_row"]["median_ms"] <= 3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no file")
    args = parser.parse_args()
    single, batched = (7, 3) if args.quick else (41, 11)
    print(
        f"{'batch':>5} {'agreement':<10}{'rule':<7}{'median ms':>10}{'peer ms':>9}"
        f"{'ratio':>7}{'accepted':>10}{'rows read':>11}{'x reading':>11}"
    )
    results = []
    for batch, repeats in ((1, single), (32, batched)):
        for level in AGREEMENT:
            found = compare(batch, level, repeats)
            results.append(found)
            for rule, row in found["rules"].items():
                print(
                    f"{batch:>5} {level:<10}{rule:<7}{row['median_ms']:>10.2f}"
                    f"{found['peer']['median_ms']:>9.2f}{row['ratio_to_peer']:>7.2f}"
                    f"{row['accepted_per_sequence']:>10.2f}{row['rows_read']:>11.1f}"
                    f"{row['times_of_reading']:>11.1f}",
                    flush=True,
                )
    costs = noise_costs(single)
    for name, row in costs.items():
        print(f"{name:<16}{row['median_ms']:>8.2f} ms")
    shown = checks(results, costs)
    for claim, holds in shown.items():
        print(f"{'✓' if holds else '✗'} {claim}")
    if not args.quick:
        report = {
            "command": "python benchmarks/verify.py",
            "machine": machine(),
            "draft_length": DRAFT_LENGTH,
            "vocab_size": VOCAB_SIZE,
            "dtype": "float32",
            "results": results,
            "noise": costs,
            "shown": shown,
        }
        write(result_file("verify"), report)
    return 0 if all(shown.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
