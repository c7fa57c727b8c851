"""`forerun demo`: generates the same texts plainly and speculatively with a real model."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from statistics import mean
from typing import Any

from forerun.base import clock
from forerun.base.errors import notice
from forerun.cli.loading import load_target
from forerun.cli.screen import Screen, legend, wants_colour
from forerun.doctor.diagnosis import diagnose
from forerun.drafters import Drafter, Heads, Mixed, Suffix
from forerun.engine.results import Generation, Stats
from forerun.generation.generate import generate, stream
from forerun.models.base import CpuPass
from forerun.sampling.options import Sampling

SAMPLING = Sampling(temperature=0.0)
MAX_NEW_TOKENS = 72
DRAFT_LENGTH = 4

PROMPTS = {
    "An edit: the answer is mostly in the prompt.": (
        "Correct the spelling mistakes in this text:\n\n"
        "The sun stood low when we reached the harbour. The fishermen were mending their nets, "
        "and the children were runing along the wall to watch the boats come in. Nobody spoke "
        "much, because everybody was tired from the long day. Then somebody began to sing, and "
        "the whole harbour sang with him until the moon stood high over the sea."
    ),
    "A sum: the answer has to be worked out.": (
        "A baker sells 24 loaves a day at 3 dollars each. Flour and wood cost him 30 dollars a "
        "day. How much does he earn in a week of six days? Show each step."
    ),
}


@dataclass(frozen=True)
class Timed:
    """A generation, and the seconds until its last token."""

    generation: Generation
    seconds: float

    def __str__(self) -> str:
        """A line with rounds, tokens per round, seconds and tokens per second."""
        stats = self.generation.stats
        return (
            f"{stats.rounds:>3} rounds, {stats.tokens_per_round:.2f} tokens per round, "
            f"{self.seconds:.1f} s, {stats.emitted / self.seconds:.1f} tokens/s"
        )


def run(args: argparse.Namespace) -> int:
    """Answer the prompts both ways. Returns status 1 if two texts differ without a near-tie as
    reason."""
    target = load_target(None)
    drafter = Mixed(Heads(), Suffix())
    compiling = "; code is compiled for this machine first, which takes about a minute"
    notice(f"warming up{compiling if _must_compile(target) else ''}")
    generate(target, "Once upon", drafter=drafter, max_new_tokens=32, ignore_eos=True)
    print(
        f"{target.name}, greedy; drafter: {drafter.name}\n\n"
        "Each prompt is answered twice.  Plain decoding makes one token in every round, a pass of "
        "the\nmodel.  With a drafter that guesses ahead a round takes longer and makes several "
        "tokens.\nThe text has to be the same."
    )
    return max(_compare(target, drafter, title, prompt) for title, prompt in PROMPTS.items())


def _must_compile(target: Any) -> bool:
    """Whether the passes of the target and its drafter still have to be compiled."""
    if not isinstance(target, CpuPass):
        return False
    from forerun.lean.forward import forward
    from forerun.lean.heads_pass import draft
    from forerun.lean.jit import is_on_disk

    return not (clock.is_code_kept and is_on_disk(forward) and is_on_disk(draft))


def _compare(target: Any, drafter: Drafter, title: str, prompt: str) -> int:
    """Answer one prompt both ways. Returns 1 if the texts differ without a near-tie as reason."""
    print(f"\n{title}\n\nprompt: {prompt}")
    print("\nplain:")
    plain = _answer(target, prompt, None)
    print(f"\nspeculative ({legend()}):" if wants_colour() else "\nspeculative:")
    ahead = _answer(target, prompt, drafter)
    print(f"\nplain        {plain}\nspeculative  {ahead}")
    difference = diagnose(
        target,
        plain.generation.prompt_tokens,
        plain.generation.tokens,
        ahead.generation.tokens,
        sampling=SAMPLING,
    )
    if difference is not None:
        print(f"The texts differ: {difference}.")
        return int(not difference.is_near_tie)
    ratio = plain.seconds / ahead.seconds
    verdict = "" if ratio > 1 else ": drafting does not pay here"
    print(f"The same {len(ahead.generation.tokens)} tokens, {ratio:.2f}x as fast{verdict}.")
    if (line := _trade(plain.generation.stats, ahead.generation.stats)) is not None:
        print(line)
    return 0


def _trade(plain: Stats, ahead: Stats) -> str | None:
    """A sentence on what a speculative round costs and gains, without the round that reads the
    prompt."""
    if plain.rounds < 2 or ahead.rounds < 2:
        return None
    usual, longer = (mean(one.total for one in s.seconds_by_round[1:]) for s in (plain, ahead))
    return (
        "Without the first round, which reads the prompt, a speculative round took as long as "
        f"{longer / usual:.1f} plain\nones and made {mean(ahead.emitted_by_round[1:]):.2f} tokens."
    )


def _answer(target: Any, prompt: str, drafter: Drafter | None) -> Timed:
    """Print the answer as it comes, and time it."""
    chat = [{"role": "user", "content": prompt}]
    start = time.perf_counter()
    pieces = stream(
        target,
        [chat],
        drafter=drafter,
        draft_length=0 if drafter is None else DRAFT_LENGTH,
        sampling=SAMPLING,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    Screen([prompt], colour=wants_colour()).show(pieces)
    seconds = time.perf_counter() - start
    generation = pieces.results()[0]
    if generation.finish_reason == "length":
        print(f"[the demo stops an answer after {MAX_NEW_TOKENS} tokens]")
    return Timed(generation, seconds)
