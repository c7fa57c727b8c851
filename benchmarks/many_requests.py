"""What a request costs in one call of many: milliseconds per request, by how many there are.

The target is a tiny function, so what is counted is the way of a request through the library:
its making, its wait, its row, its rounds and its result.  Processor time of the one thread is
counted, so that waiting for a core that somebody else has does not count, and the counts take
turns, because a shared processor is now quicker and now slower.

    python benchmarks/many_requests.py [--counts 500,10000,100000] [--laps 3]
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
from numpy.typing import NDArray

import forerun as fr
from machine import save

ROWS = 256
NEW_TOKENS = 4
VOCABULARY = 16
LIMIT = 1.2
"""The dearest count may cost this many times as much per request as the cheapest."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="500,10000,100000")
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--output", default="many_requests")
    args = parser.parse_args()
    counts = [int(count) for count in args.counts.split(",")]
    milliseconds(ROWS)  # warm
    laps = [{count: milliseconds(count) for count in counts} for _ in range(args.laps)]
    costs = {count: median(lap[count] for lap in laps) for count in counts}
    ratio = max(costs.values()) / min(costs.values())
    for count, cost in costs.items():
        print(f"{count:>8} requests: {cost:.3f} ms each")
    print(f"{'✓' if ratio <= LIMIT else '✗'} within a factor of {ratio:.2f}")
    results = {"rows": ROWS, "new_tokens": NEW_TOKENS, "laps": laps, "ratio": ratio}
    save(args.output, {**results, "milliseconds": costs})
    raise SystemExit(ratio > LIMIT)


def milliseconds(count: int) -> float:
    """The mean cost of a request in a call of `count`; short calls are repeated."""
    numbers = np.arange(count)
    prompts = np.stack([numbers, numbers // VOCABULARY], axis=1) % VOCABULARY  # (count, 2)
    repeats = max(1, 10_000 // count)
    begin = time.process_time()
    for _ in range(repeats):
        fr.generate(TARGET, prompts.tolist(), max_new_tokens=NEW_TOKENS, batch_size=ROWS)
    return (time.process_time() - begin) * 1000 / (repeats * count)


def successor(tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """The law of a model that says the next number with 9 chances in 10."""
    law = np.full(VOCABULARY, 0.1 / (VOCABULARY - 1))
    law[(tokens[-1] + 1) % VOCABULARY] = 0.9
    return law


TARGET = fr.wrap(successor)

if __name__ == "__main__":
    main()
