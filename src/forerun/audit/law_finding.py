"""The finding on the law: what was tested under which conditions, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.audit.evidence import POOLED, Evidence, Wealth, needed
from forerun.audit.findings import Finding, Status
from forerun.audit.strength import interval, smallest_bias, tokens_for

LEVEL = 0.006
"""The share of the audit's 1% that this check has."""
SUSPECT = 0.01
"""A level at which one-token samples are taken to differ from the log-probabilities told."""
NEVER = "several options at once, other penalties, grammars, tools"
"""What no audit tests."""


@dataclass(frozen=True)
class Guess:
    """The chance of the copied token, or of the likeliest where there is none; whether it came."""

    condition: str
    chance: float
    came: float
    is_copied: bool


@dataclass(frozen=True)
class Outcome:
    """samples: evidence that one-token samples do not follow their law; None: nothing was rejected.
    left_out: why conditions were not tested, by name."""

    wealth: Wealth
    level: float
    guesses: Sequence[Guess]
    samples: Evidence | None
    left_out: Mapping[str, str]
    num_texts: int
    num_skipped: int
    slack: float
    can_continue: bool

    @property
    def is_wrong(self) -> bool:
        """Whether the e-value has passed the bar."""
        return self.wealth.log_e_value >= needed(self.level)

    @property
    def is_moot(self) -> bool:
        """One-token samples do not follow the law either, so speculation is not to blame."""
        return self.samples is not None and bends(self.samples)

    def smallest_bias(self, name: str | None = None) -> float | None:
        """The least mean change of a guess's chance that would have been found, under one condition
        or in all; None: not even a gross one."""
        share = POOLED if name is None else (1 - POOLED) / len(self.wealth.parts)
        chances = [one.chance for one in self.guesses if name in (None, one.condition)]
        return smallest_bias(chances, self.level * share)


def bends(samples: Evidence) -> bool:
    """One-token samples do not follow the law that is stated for them."""
    return samples.log_wealth >= needed(SUSPECT)


def follows(samples: Evidence, num_tokens: int) -> bool:
    """As many one-token samples as there were tokens of text that showed a fault show none."""
    return samples.num_tokens >= num_tokens and samples.log_wealth < 0


def law_finding(outcome: Outcome) -> Finding:
    """The outcome in words, with the estimate and what would have been found."""
    if outcome.wealth.num_tokens == 0:
        words = "No place was found where both the text and its distribution are known."
        return Finding("law", Status.UNKNOWN, words)
    guesses = outcome.guesses
    differences = [guess.came - guess.chance for guess in guesses]
    share = sum(guess.is_copied for guess in guesses) / max(1, len(guesses))
    aim = "the copied token" if share > 0.5 else "the likeliest token"
    least = outcome.smallest_bias()
    return Finding(
        "law",
        _status(outcome, is_blind=least is None),
        " ".join(_sentences(outcome)),
        f"mean change in the chance of {aim}",
        float(np.mean(differences)) if differences else None,
        interval(differences, 0.01),
        _catch(outcome, least, aim),
        {
            "log_e_value": outcome.wealth.log_e_value,
            "log_e_value_of_one_token_samples": outcome.samples and outcome.samples.log_wealth,
            "level": outcome.level,
            "slack": outcome.slack,
            "tokens": outcome.wealth.num_tokens,
            "texts": outcome.num_texts,
            "skipped": outcome.num_skipped,
            "conditions": {
                name: {
                    "tokens": parts[0].num_tokens,
                    "log_e_value": outcome.wealth.of(name),
                    "smallest_bias": outcome.smallest_bias(name),
                }
                for name, parts in outcome.wealth.parts.items()
            },
            "suspect": (outcome.wealth.suspect() or "all together") if outcome.is_wrong else None,
            "left_out": dict(outcome.left_out),
        },
    )


def _status(outcome: Outcome, *, is_blind: bool) -> Status:
    """How the check ended; is_blind: not even a gross change would have been found."""
    if outcome.is_wrong:
        return Status.UNKNOWN if outcome.is_moot else Status.FAILED
    return Status.UNCLEAR if is_blind else Status.PASSED


def _sentences(outcome: Outcome) -> list[str]:
    """What was found, what explains it, and what was covered.

    A rejection is blamed on the text only where one-token samples follow the law that is stated
    for them; else both readings are named.
    """
    wealth = outcome.wealth
    odds = (
        f"{wealth.num_tokens} tokens in {outcome.num_texts} texts, odds against the stated "
        f"distribution (e-value) {_power(wealth.log_e_value)}, a verdict needs "
        f"{1 / outcome.level:.0f}."
    )
    said = [_verdict(outcome), odds] if outcome.is_wrong else [f"No difference found: {odds}"]
    said.append(_coverage(outcome))
    if not outcome.can_continue:
        said.append("Laws are those told with the text itself, which proves less.")
    if outcome.num_skipped:
        said.append(
            f"{outcome.num_skipped} places skipped, where the text is not read as its tokens, or "
            "several tokens look alike."
        )
    return said


def _verdict(outcome: Outcome) -> str:
    """What is wrong, as far as one-token samples tell: the text, or what is stated of it."""
    name, samples = outcome.wealth.suspect(), outcome.samples
    where = "" if name in (None, "plain") else f" under '{name}'"
    count = 0 if samples is None else samples.num_tokens
    drawn = f"{count} one-token samples"
    if outcome.is_moot:
        return (
            f"Neither text{where} nor {drawn}, which nothing speculates on, follow the stated "
            "log-probabilities. Either those are not the ones that the server draws from (scaled, "
            "say), or a default or an option bends every draw; nothing is said about speculation."
        )
    looked = wealth_tokens(outcome.wealth, name)
    if samples is not None and follows(samples, looked):
        return (
            f"Text{where} does not follow the distribution of one-token requests, while {drawn} "
            f"do (e-value {_power(samples.log_wealth)}): it is the text that is wrong."
        )
    return (
        f"Text{where} does not follow the distribution of one-token requests. Either the text is "
        f"wrong, or the stated log-probabilities are not those that the server draws from: {drawn} "
        "are too few to tell."
    )


def wealth_tokens(wealth: Wealth, name: str | None) -> int:
    """Tokens that the evidence of a condition, or of the pool, has looked at."""
    return wealth.pool.num_tokens if name is None else wealth.parts[name][0].num_tokens


def _coverage(outcome: Outcome) -> str:
    """Tokens under each condition, and what was not tested."""
    parts = outcome.wealth.parts
    tested = [
        f"{name} ({part[0].num_tokens})" for name, part in parts.items() if part[0].num_tokens
    ]
    missed = [name for name, part in parts.items() if not part[0].num_tokens]
    reasons = []
    for name in missed:
        usual = (
            "no place is told well enough"
            if outcome.wealth.spent_under(name)
            else "the budget ended"
        )
        reasons.append(f"{name} ({outcome.left_out.get(name, usual)})")
    return f"Tested (tokens): {', '.join(tested)}. Not tested: {'; '.join([*reasons, NEVER])}."


def _catch(outcome: Outcome, least: float | None, aim: str) -> str:
    """The smallest change that would have been found, in all and under each condition."""
    if least is None:
        return "nothing for certain, not even a gross change: raise --budget"
    words = f"a change of {least:.3f} in the chance of {aim}, with a chance of 95%"
    alone = {name: outcome.smallest_bias(name) for name in outcome.wealth.parts}
    known = [f"{name} {bias:.2f}" for name, bias in alone.items() if bias is not None]
    if known:
        words += f"; of one that shows under one condition alone: {', '.join(known)}"
    chances = [guess.chance for guess in outcome.guesses]
    if (more := tokens_for(least / 2, chances, outcome.level)) is not None:
        words += f"; half of the first would take about {more:,} tokens of text"
    return words


def _power(logarithm: float) -> str:
    """e to a power, readable for very large and very small ones."""
    if abs(logarithm) < 10:
        return f"{math.exp(logarithm):.3g}"
    return f"10^{logarithm / math.log(10):.0f}"
