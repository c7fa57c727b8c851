"""Play recorded guesses against the draft policy: what it makes of them on several machines.

Under `match` the text is fixed, so what a drafter would guess at every position of a text can be
recorded once.  The player then runs the engine, the policy and `Mixed` as they are, with a target
that recites the recorded text, drafters that recite their guesses, and a clock that moves on by a
machine's prices (`play_prices.json`) and seeded noise, which the policy sees and the result does
not.  It reports tokens per second over plain decoding.

    python benchmarks/play.py [--machines NAME ...] [--drafters NAME ...] [--output play]
    python benchmarks/play.py --record SPEC_BENCH.jsonl [--per-group 10]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import forerun as fr
from forerun.base import clock
from forerun.drafters import Guess, Mixed, Outcome, Suffix, Turn
from machine import ANY, result_file, write

HERE = Path(__file__).parent
GUESSES, PRICES = HERE / "play_guesses.npz", HERE / "play_prices.json"
DRAFTERS = ("heads", "suffix")
LONGEST, SIZE, HEAT = 8, 128, 0.8
STEP = 255  # a chance is kept as a whole number of so many parts
NOISE, SPIKE, SPIKES = 0.08, 4.0, 0.01  # of a timing, as a logarithm; how long it takes if it is
# interrupted, and how often that is
COOLING = 0.7  # of what a drafter pushed out of the cache, a pass later this much is missing still
WRONG, END = 3, 4  # tokens of the recited text: the others are its positions, counted by three


@dataclass
class Text:
    """One recorded answer, and what each drafter would guess at each of its positions."""

    group: str
    temperature: float
    num_prompt: int
    ended: bool  # by its own end, not by the limit
    values: dict[str, np.ndarray]  # (N, LONGEST) stated chances, 0 where there is no guess
    right: dict[str, np.ndarray]  # (N,): how many guesses are the text's

    @property
    def num_tokens(self) -> int:
        return len(self.right[DRAFTERS[0]])

    def token(self, position: int) -> int:
        return END if self.ended and position == self.num_tokens - 1 else position % 3


class Eavesdropper:
    """Asks drafters in every round for all they have, notes it, and guesses nothing."""

    name = "eavesdropper"

    def __init__(self) -> None:
        self.drafters: list[Any] = [fr.drafters.Heads(), Suffix()]
        self.layers = self.drafters[0].layers
        self.noted: list[list[Guess]] = []  # by round, of each drafter

    def start(self, target: Any, num_rows: int, capacity: int, rows: Any = None) -> list[Any]:
        return [drafter.start(target, num_rows, capacity, rows) for drafter in self.drafters]

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        asked = [replace(turn, worth=0.0, goes_on=()) for turn in turns]
        pairs = zip(self.drafters, state, strict=True)
        self.noted.append([one.propose(own, asked, shared_noise=True)[0] for one, own in pairs])
        return [Guess() for _ in turns]

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        for drafter, own in zip(self.drafters, state, strict=True):
            drafter.enter(own, row, tokens, num_prompt)

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        for drafter, own in zip(self.drafters, state, strict=True):
            drafter.observe(own, outcomes)

    def release(self, state: Any, row: int) -> None:
        for drafter, own in zip(self.drafters, state, strict=True):
            drafter.release(own, row)


def record(path: str, per_group: int) -> None:
    """Write what the default model's drafters would guess at every position of their answers."""
    from forerun.loading.default import default_model
    from spec_bench import read
    from turns import encode

    target, texts = default_model(), []
    for heat in (0.0, HEAT):
        for number, (group, prompt) in enumerate(read(path, per_group)):
            tokens, ear = encode(target, prompt), Eavesdropper()
            answer = fr.generate(
                target, tokens, drafter=ear, draft_length=LONGEST, max_new_tokens=SIZE,
                sampling=fr.Sampling(temperature=heat, seed=number),
            )  # fmt: skip
            assert answer.stats.notes == [], answer.stats.notes
            values = np.zeros((len(DRAFTERS), len(answer.tokens), LONGEST))
            right = np.zeros((len(DRAFTERS), len(answer.tokens)), np.int64)
            for position, guesses in enumerate(ear.noted):
                for who, guess in enumerate(guesses):
                    values[who, position, : len(guess.tokens)] = guess.values
                    pairs = zip(guess.tokens, answer.tokens[position:], strict=False)
                    wrong = (at for at, (mine, its) in enumerate(pairs) if mine != its)
                    right[who, position] = next(wrong, len(guess.tokens))
            ended = answer.finish_reason == "stop"
            kept = dict(zip(DRAFTERS, values, strict=True)), dict(zip(DRAFTERS, right, strict=True))
            texts.append(Text(group, heat, len(tokens), ended, *kept))
    keep(texts)


def keep(texts: Sequence[Text]) -> None:
    arrays: dict[str, Any] = {
        "groups": np.array([text.group for text in texts]),
        "temperatures": np.array([text.temperature for text in texts]),
        "prompts": np.array([text.num_prompt for text in texts], np.int32),
        "ended": np.array([text.ended for text in texts]),
        "tokens": np.array([text.num_tokens for text in texts], np.int32),
    }
    for name in DRAFTERS:
        values = np.concatenate([text.values[name] for text in texts])
        arrays[name] = np.where(values > 0, np.clip(np.rint(STEP * values), 1, STEP - 1), 0).astype(
            np.uint8
        )
        arrays[f"{name} right"] = np.concatenate([t.right[name] for t in texts]).astype(np.uint8)
    np.savez_compressed(GUESSES, **arrays)
    print(f"wrote {GUESSES.name}: {len(texts)} texts, {GUESSES.stat().st_size} bytes")


def read_texts() -> list[Text]:
    """The recorded answers, those of one temperature after those of the other."""
    kept = np.load(GUESSES)
    ends = np.cumsum(kept["tokens"])
    texts = []
    for number, end in enumerate(ends):
        own = slice(end - kept["tokens"][number], end)
        values = {name: kept[name][own] / STEP for name in DRAFTERS}
        right = {name: kept[f"{name} right"][own] for name in DRAFTERS}
        about = kept["groups"][number], kept["temperatures"][number], kept["prompts"][number]
        texts.append(Text(str(about[0]), *about[1:], kept["ended"][number], values, right))
    return texts


class World:
    """A machine with one text at work: its clock, its prices in milliseconds, and its noise."""

    def __init__(self, prices: dict[str, Any], seed: int) -> None:
        self.prices, self.noise = prices, Random(seed)
        self.seconds = 0.0  # as the policy is told
        self.quiet_seconds = 0.0  # without the noise, which makes no policy better or worse
        self.cold = 0.0  # how much of the cache a drafter has taken
        self.was_asked = False  # in this round
        self.text: Text
        self.is_first = True  # the round that reads its prompt

    def __call__(self) -> float:
        return self.seconds

    def take(self, milliseconds: float) -> None:
        self.quiet_seconds += 1e-3 * milliseconds
        spike = SPIKE if self.noise.random() < SPIKES else 1.0
        self.seconds += 1e-3 * milliseconds * spike * self.noise.lognormvariate(0, NOISE)

    def run_pass(self, size: int, context: int) -> None:
        sizes, more = self.prices["pass"], self.prices["pass_per_1000_before"]
        if size > len(sizes):  # a prompt: nobody counts it, but it takes its time
            self.take(sizes[-1] * size / len(sizes))
        else:
            cold = self.cold * self.prices["cold"]
            self.take(sizes[size - 1] + more[size - 1] * context / 1000 + cold)
        self.cold *= COOLING

    def begin(self, text: Text) -> None:
        self.text, self.is_first = text, True

    def end_round(self) -> None:
        self.take(self.prices["after_ask" if self.was_asked else "after"])
        if self.is_first:  # the round that reads the prompt is not counted
            self.quiet_seconds, self.is_first = 0.0, False
        elif self.was_asked:
            self.quiet_seconds += 1e-3 * self.prices["between_asked"]
        self.was_asked = False

    def ask(self, drafter: str, num_levels: int, num_unread: int) -> None:
        base, level, read = self.prices[drafter]
        self.cold, self.was_asked = 1.0, True
        self.take(base + level * num_levels + read * num_unread)


class Reciter:
    """A target that says the text at hand."""

    name, vocab_size, max_context = "reciter", END + 1, None

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, num_rows: int, capacity: int = 0) -> Any:
        return type("Rows", (), {"lengths": [0] * num_rows, "fed": 0})()

    def score(self, state: Any, rows: Any, tokens: Any, num_logits: Any) -> Any:
        (row,), (fed,), (count,), text = rows, tokens, num_logits, self.world.text
        end = state.lengths[row] + len(fed)
        self.world.run_pass(len(fed), end)
        logits, first = np.zeros((1, count, self.vocab_size)), end - count + 1 - text.num_prompt
        for at in range(count):
            logits[0, at, text.token(first + at)] = 1000.0
        return logits

    def commit(self, state: Any, rows: Any, kept: Any) -> None:
        state.lengths[rows[0]] += kept[0]
        self.world.end_round()

    def release(self, state: Any, row: int) -> None:
        state.lengths[row] = 0


@dataclass(eq=False)
class Recited:
    """A drafter that says what one said when it was recorded, as far as it is asked to go."""

    name: str
    world: World
    num_unread: int = field(default=0, init=False)

    def start(self, target: Any, num_rows: int, capacity: int, rows: Any = None) -> None: ...

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        self.num_unread = len(tokens)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        (turn,), text = turns, self.world.text
        if self.name == "heads" and turn.position == 0:  # it has no hidden states to go on from
            return [Guess()]
        stated, values, levels = text.values[self.name][turn.position], [], 0
        for value in stated[: turn.height].tolist():
            levels += 1
            if value <= 0 or value < turn.worth:
                break
            values.append(value)
            if levels <= len(turn.goes_on) and value < turn.goes_on[levels - 1]:
                break
        self.world.ask(self.name, levels, self.num_unread)
        self.num_unread = 0
        right = int(text.right[self.name][turn.position])
        tokens = [text.token(turn.position + at) if at < right else WRONG for at in range(8)]
        return [Guess(tokens[: len(values)], values=values)]

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        self.num_unread += sum(len(outcome.tokens) for outcome in outcomes)

    def release(self, state: Any, row: int) -> None: ...


def drafter_of(name: str, world: World) -> Any:
    parts = [Recited(part, world) for part in name.split("+")] if name != "plain" else []
    return Mixed(*parts) if len(parts) > 1 else next(iter(parts), None)


def play(
    name: str, prices: dict[str, Any], texts: Sequence[Text], seed: int
) -> dict[tuple[str, str], Any]:
    """Tokens after the first round, our seconds and those of plain decoding, by task group and
    kind; one text after the other, with what was learned from those before."""
    world = World(prices, seed)
    target, drafter, found = Reciter(world), drafter_of(name, world), {}
    with clock.timed_by(world):
        for number, text in enumerate(texts):
            world.begin(text)
            answer = fr.generate(
                target, [0] * text.num_prompt, drafter=drafter, max_new_tokens=SIZE,
                stop_tokens=[END], sampling=fr.Sampling(temperature=text.temperature, seed=number),
            )  # fmt: skip
            assert answer.tokens == [text.token(at) for at in range(text.num_tokens)]
            stats, key = answer.stats, (text.group, "sampled" if text.temperature else "greedy")
            plain = plain_seconds(prices, text) * (stats.emitted - stats.emitted_by_round[0])
            found[key] = found.get(key, 0.0) + np.array([world.quiet_seconds, plain])
    return found


def plain_seconds(prices: dict[str, Any], text: Text) -> float:
    """Seconds that a token takes without a drafter, after the first."""
    context = text.num_prompt + text.num_tokens / 2
    more = prices["pass_per_1000_before"][0] * context / 1000
    return 1e-3 * float(prices["pass"][0] + more + prices["after"])


def sessions(texts: Sequence[Text]) -> dict[str, list[Text]]:
    """Greedy and sampled texts alone, and in turn."""
    greedy, sampled = ([t for t in texts if bool(t.temperature) is hot] for hot in (False, True))
    turns = [text for pair in zip(greedy, sampled, strict=True) for text in pair]
    return {"greedy": greedy, "sampled": sampled, "in turn": turns}


def speeds(played: Sequence[dict[tuple[str, str], Any]]) -> dict[str, float]:
    """Over plain decoding, by task group, and the mean of the groups."""
    totals = {key: sum(found[key] for found in played) for key in played[0]}
    result: dict[str, float] = {}
    for kind in ("greedy", "sampled"):
        own = {
            group: total[1] / total[0] for (group, what), total in totals.items() if what == kind
        }
        if own:
            result[kind] = statistics.geometric_mean(own.values())
            result |= {f"{kind} {group}": speed for group, speed in own.items()}
    return {key: round(float(value), 4) for key, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", metavar="SPEC_BENCH.jsonl")
    parser.add_argument("--per-group", type=int, default=10)
    parser.add_argument("--machines", nargs="*", help="those of play_prices.json (default: all)")
    parser.add_argument("--drafters", nargs="*", default=["heads+suffix"])
    parser.add_argument("--sessions", nargs="*", default=["greedy", "sampled", "in turn"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", help="name of a JSON file (default: print only)")
    args = parser.parse_args()
    if args.record:
        record(args.record, args.per_group)
    else:
        play_all(args)


def play_all(args: argparse.Namespace) -> None:
    machines, lists, results = json.loads(PRICES.read_text()), sessions(read_texts()), {}
    for machine in args.machines or machines:
        for drafter in args.drafters:
            for session in args.sessions:
                prices, texts = machines[machine], lists[session]
                found = speeds([play(drafter, prices, texts, n) for n in range(args.seeds)])
                results[f"{machine}, {drafter}, {session}"] = found
                print(f"{machine}, {drafter}, {session}", flush=True)
                for key, value in found.items():
                    print(f"    {key:24} {value:.3f}")
    if args.output:
        write(result_file(args.output, folder=ANY), results)


if __name__ == "__main__":
    main()
