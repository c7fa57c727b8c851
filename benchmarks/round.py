"""What a round costs outside the models: microseconds per round, by stage and in all.

The target here recites a text and takes no time that counts: its calls are timed and subtracted.
What is left is the engine, the rule, the sampling pipeline and a drafter that knows the answer up
to some mistakes.

    python benchmarks/round.py [--output round]
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

import forerun as fr
from forerun.drafters import Guess
from machine import save

WARM = fr.Sampling(temperature=0.8, seed=1)
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": fr.Sampling(temperature=0.0)},
    "temperature 0.8": {"sampling": WARM},
    "temperature 0.8, top_p 0.95": {"sampling": replace(WARM, top_p=0.95)},
    "temperature 0.8, 5 logprobs": {"sampling": WARM, "logprobs": 5},
}


class Rows:
    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self.fed = [0] * num_rows


class Reciter:
    """Logits out of a bank, with the text's next token far above the rest."""

    name, max_context = "reciter", None

    def __init__(self, num_tokens: int, vocab_size: int) -> None:
        generator = np.random.default_rng(0)
        self.vocab_size = vocab_size
        self.text = [int(token) for token in generator.integers(vocab_size, size=num_tokens)]
        self.bank = generator.normal(size=(8, vocab_size)).astype(np.float32)
        self.seconds = 0.0

    def start(self, num_rows: int, capacity: int = 0) -> Rows:
        return Rows(num_rows)

    def score(self, state: Rows, rows: Any, tokens: Any, num_logits: Any) -> Any:
        begin = time.process_time()
        found = np.empty((len(rows), max(num_logits), self.vocab_size), dtype=np.float32)
        for index, (row, fed, count) in enumerate(zip(rows, tokens, num_logits, strict=True)):
            end = state.lengths[row] + len(fed)
            for at in range(count):
                place = end - count + at + 1
                found[index, at] = self.bank[place % len(self.bank)]
                found[index, at, self.text[place % len(self.text)]] = 18.0
            state.fed[row] = len(fed)
        self.seconds += time.process_time() - begin
        return found

    def commit(self, state: Rows, rows: Any, kept: Any) -> None:
        for row, count in zip(rows, kept, strict=True):
            state.lengths[row] += count if isinstance(count, int) else len(count)

    def release(self, state: Rows, row: int) -> None:
        state.lengths[row] = 0


class Knowing:
    """Guesses the text, every third token wrong."""

    name = "knowing"

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def start(self, target: Any, num_rows: int, capacity: int, rows: Any = None) -> dict[int, int]:
        return {}  # tokens in the prompt of each row

    def enter(self, state: Any, row: int, tokens: Any, num_prompt: int) -> None:
        state[row] = num_prompt

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> list[Guess]:
        return [Guess(self._tokens(state[turn.row] + turn.position, turn.budget)) for turn in turns]

    def _tokens(self, start: int, count: int) -> list[int]:
        places = range(start, start + count)
        return [self.text[at % len(self.text)] - (at % 3 == 0) for at in places]

    def observe(self, state: Any, outcomes: Any) -> None: ...

    def release(self, state: Any, row: int) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--no-file", action="store_true", help="print only")
    parser.add_argument("--output", default="round", help="name of the JSON file")
    args = parser.parse_args()
    target = Reciter(args.tokens + 100, args.vocab_size)
    drafters = {"plain": None, "draft of 5": Knowing(target.text)}
    results = {}
    for batch in args.batch:
        for called, options in OPTIONS.items():
            for name, drafter in drafters.items():
                costs = [cost(target, drafter, options, batch, args) for _ in range(args.repeats)]
                key = f"batch {batch}, {called}, {name}"
                results[key] = {"microseconds": statistics.median(costs), "best": min(costs)}
                print(f"{key:55} {statistics.median(costs):8.0f} us per round")
    if not args.no_file:
        about = {"vocab_size": args.vocab_size}
        save(args.output, {**about, "microseconds per round outside the models": results})


def cost(target: Reciter, drafter: Any, options: Any, batch: int, args: Any) -> float:
    """Microseconds of one round that were not spent in the target."""
    target.seconds = 0.0
    begin = time.process_time()
    found = fr.generate(
        target, [target.text[:50]] * batch, drafter=drafter, draft_length=5,
        max_new_tokens=args.tokens, batch_size=batch, **options,
    )  # fmt: skip
    spent = time.process_time() - begin - target.seconds
    return 1e6 * spent / max(answer.stats.rounds for answer in found)


if __name__ == "__main__":
    main()
