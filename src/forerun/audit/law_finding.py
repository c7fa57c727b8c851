"""Writes the finding about the law: what was tested, what is wrong, and which faults would have
been found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.audit.evidence import POOLED, Evidence, Wealth, needed
from forerun.audit.findings import Finding, Status
from forerun.base.arrays import HostArray

MISS = 0.05
"""The chance that a test misses the smallest bias which it claims it would find."""
Z_MISS = 1.645
"""The quantile of the normal distribution for the probability 1 - MISS."""
OVERHEAD = math.log(5 * 80)
"""The nats that the right expert must win first, because it starts with only a share of the
wealth."""


def interval(differences: Sequence[float], level: float) -> tuple[float, float]:
    """An interval for the mean bias that holds at all times at once, with probability 1 - level.

    differences: for every token, 1 or 0 (whether it came) less its stated probability. A difference
    less its true mean is sub-Gaussian with variance 1/4, so Robbins' mixture bounds their sum: |S|
    stays within sqrt((V + r) log((V + r) / (r level^2))) with V = n / 4, for any r fixed
    beforehand.
    """
    count = len(differences)
    if count == 0:
        return -1.0, 1.0
    variance, start = count / 4, 50.0
    width = math.sqrt((variance + start) * math.log((variance + start) / (start * level**2)))
    mean = float(np.mean(differences))
    return max(-1.0, mean - width / count), min(1.0, mean + width / count)


def information(alpha: float) -> float:
    """The information in nats that a test at level alpha needs to succeed with probability 1 -
    MISS.

    After K nats the log-wealth is approximately normal with mean K and variance 2 K.
    """
    need = -math.log(alpha) + OVERHEAD
    root = (Z_MISS * math.sqrt(2) + math.sqrt(2 * Z_MISS**2 + 4 * need)) / 2
    return root**2


def smallest_bias(chances: Sequence[float], alpha: float) -> float | None:
    """The smallest mean change of a token's probability that would have been found with probability
    95%.

    chances: the probabilities of the token in question (the likeliest, or the copied one) at every
    place.
    None if even changing its odds by a factor of e^3 would not have been found.
    """
    law = np.asarray(chances)
    goal = information(alpha)
    low, high = 0.0, 3.0
    if len(law) == 0 or _nats(law, high) < goal:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _nats(law, middle) < goal else (low, middle)
    return float(np.mean(_tilted(law, high) - law))


def tokens_for(bias: float, chances: Sequence[float], alpha: float) -> int | None:
    """About how many tokens a test needs to find a mean change of this size."""
    law = np.asarray(chances)
    if len(law) == 0:
        return None
    variance = float(np.mean(law * (1 - law)))
    if variance <= 0:
        return None
    return math.ceil(information(alpha) * 2 * variance / bias**2)


def _tilted(law: HostArray, theta: float) -> HostArray:
    """Probabilities after raising their log-odds by theta."""
    return np.asarray(law * math.exp(theta) / (1 - law + law * math.exp(theta)))


def _nats(law: HostArray, theta: float) -> float:
    """The information in one token at each place, if all probabilities are tilted by theta."""
    tilted = np.clip(_tilted(law, theta), 1e-12, 1 - 1e-12)
    law = np.clip(law, 1e-12, 1 - 1e-12)
    each = tilted * np.log(tilted / law) + (1 - tilted) * np.log((1 - tilted) / (1 - law))
    return float(each.sum())


LEVEL = 0.006
"""The part of the audit's 1% significance level that this check has."""
SUSPECT = 0.01
"""The level at which one-token samples count as contradicting the log-probabilities reported for
them."""
NEVER = "several options at once, other penalties, grammars, tools"
"""Things that no audit tests, in words for the report."""


@dataclass(frozen=True)
class Guess:
    """The probability of the copied token, or of the likeliest one where nothing was copied, and
    whether it came."""

    condition: str
    chance: float
    came: float
    is_copied: bool


@dataclass(frozen=True)
class Outcome:
    """All data from the test of the law.

    samples: evidence that one-token samples do not follow their law; None if nothing was rejected.
    left_out: by name, the reason why a condition was not tested.
    """

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
        """Whether the e-value is large enough to reject the law."""
        return self.wealth.log_e_value >= needed(self.level)

    @property
    def is_moot(self) -> bool:
        """Whether one-token samples do not follow the law either, so that speculation is not the
        cause."""
        return self.samples is not None and bends(self.samples)

    def smallest_bias(self, name: str | None = None) -> float | None:
        """The smallest mean change of a guess's probability that would have been found, under one
        condition or in total; None if not even a large one."""
        share = POOLED if name is None else (1 - POOLED) / len(self.wealth.parts)
        chances = [one.chance for one in self.guesses if name in (None, one.condition)]
        return smallest_bias(chances, self.level * share)


def bends(samples: Evidence) -> bool:
    """Whether one-token samples contradict the law that is stated for them."""
    return samples.log_wealth >= needed(SUSPECT)


def follows(samples: Evidence, num_tokens: int) -> bool:
    """Whether one-token samples agree with the law, judged by at least as many as there were tokens
    in texts."""
    return samples.num_tokens >= num_tokens and samples.log_wealth < 0


def law_finding(outcome: Outcome) -> Finding:
    """The finding about the law: the outcome in words, with the estimate and the smallest fault
    that would have been found."""
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
    """The status of the check. is_blind: not even a large change would have been found."""
    if outcome.is_wrong:
        return Status.UNKNOWN if outcome.is_moot else Status.FAILED
    return Status.UNCLEAR if is_blind else Status.PASSED


def _sentences(outcome: Outcome) -> list[str]:
    """Sentences on what was found, what explains it, and what was covered.

    A rejection is blamed on the text only if one-token samples follow the law stated for them;
    otherwise both explanations are named.
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
    """A sentence on the cause of a rejection: the text, or the stated law, as far as one-token
    samples show it."""
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
    """The number of tokens in the evidence of a condition, or of the pool (None)."""
    return wealth.pool.num_tokens if name is None else wealth.parts[name][0].num_tokens


def _coverage(outcome: Outcome) -> str:
    """A sentence on the number of tokens under each condition, and on what was not tested."""
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
    """A phrase for the smallest change that would have been found, in total and under each
    condition."""
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
    """e to the given power as text, readable even if very large or small."""
    if abs(logarithm) < 10:
        return f"{math.exp(logarithm):.3g}"
    return f"10^{logarithm / math.log(10):.0f}"
