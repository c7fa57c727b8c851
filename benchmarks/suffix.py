"""What a new token costs the suffix drafter, by how much history there is: adding and matching.

The text is like a language: a vocabulary with Zipf's frequencies, phrases that come again, passages
that are copied.  For every size of history, the next 2,100 tokens are added in rounds of three and
a chain of five is asked for after each; the median of seven turns counts.  A token takes one step
per suffix that occurred before, at most `max_match`; with more history a few more of them did, and
each step finds its node further away in memory.  Processor time, since waiting for a core that
somebody else has does not count.

    python benchmarks/suffix.py
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import forerun as fr
from forerun.drafters import Outcome, Suffix, Turn
from machine import save

SIZES = (1_000, 10_000, 100_000, 1_000_000)
PER_ROUND, PER_TURN, TURNS = 3, 300, 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args()
    results = {}
    for size in args.sizes:
        found = measure(size)
        results[str(size)] = found
        print(
            f"{size:>9} tokens of history: {found['microseconds']:6.1f} us per new token, add and "
            f"match, in {found['steps_per_token']:.1f} steps; building it took "
            f"{found['build_microseconds']:.1f} us and {found['nodes_per_token']:.2f} nodes a token"
        )
    times = [each["microseconds"] for each in results.values()]
    flat = max(times) < 2 * min(times)
    print(f"{'✓' if flat else '✗'} a thousand times the history, {max(times) / min(times):.2f}x")
    save("suffix", {"history": results, "largest over smallest": max(times) / min(times)})
    raise SystemExit(not flat)


def measure(size: int) -> dict[str, float]:
    text = make_text(size + TURNS * PER_TURN)
    drafter = Suffix(max_nodes=10**8)  # nothing is dropped, so that the whole history is there
    state = drafter.start(None, 1, len(text))  # type: ignore[arg-type]
    begin = time.process_time()
    turn = Turn(0, 5, fr.Sampling(), 0, 0)
    drafter.enter(state, 0, text[:size], 1)
    drafter.propose(state, [turn], shared_noise=True)
    built = time.process_time() - begin
    costs: list[float] = []
    steps: list[int] = []
    for first in range(size, len(text), PER_TURN):
        begin = time.process_time()
        for place in range(first, first + PER_TURN, PER_ROUND):
            drafter.observe(state, [Outcome(0, 0, text[place : place + PER_ROUND])])
            drafter.propose(state, [turn], shared_noise=True)
            steps.append(1 + len(state.rows[0].trie.walkers))
        costs.append((time.process_time() - begin) / PER_TURN)
    return {
        "microseconds": 1e6 * statistics.median(costs),
        "build_microseconds": 1e6 * built / size,
        "steps_per_token": statistics.mean(steps),
        "nodes_per_token": state.rows[0].trie.num_nodes / len(text),
    }


def make_text(size: int) -> list[int]:
    generator = random.Random(0)
    words = range(1, 20_001)
    weights = [1 / rank for rank in words]
    fresh = iter(generator.choices(words, weights, k=size))
    phrases = [generator.choices(words, weights, k=6) for _ in range(2_000)]
    text: list[int] = []
    while len(text) < size:
        kind = generator.random()
        if kind < 0.2:
            text += generator.choice(phrases)
        elif kind < 0.22 and len(text) > 100:
            start = generator.randrange(len(text) - 50)
            text += text[start : start + 50]
        else:
            text.append(next(fresh))
    return text[:size]


if __name__ == "__main__":
    main()
