"""Wealth is a martingale under the stated law, and grows under others."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from forerun.audit.bins import ROUNDING, Bins
from forerun.audit.evidence import Evidence, View, needed
from forerun.audit.features import NAMES, features
from forerun.audit.law_finding import MISS, interval, smallest_bias
from forerun.audit.mechanisms import Mechanisms

LAWS = [
    Bins.of({" a": math.log(0.5), " b": math.log(0.3)}),
    Bins.of({" b": math.log(0.6), " a": math.log(0.39)}),
    Bins.of({" a": math.log(0.9)}),
]


def law_after(text: tuple[int, ...]) -> Bins:
    """A law that depends on what was said."""
    return LAWS[(len(text) + sum(text)) % 3]


def walk(choose: list[int]) -> float:
    """The wealth after tokens by their bins."""
    mechanisms = Mechanisms()
    evidence = Evidence(len(NAMES), 2, num_others=1, num_mechanisms=len(mechanisms))
    said: tuple[int, ...] = ()
    keys = [" a", " b", " a"]
    mechanisms.start()
    for seen in choose:
        law = law_after(said)
        table = features(law, keys, len(keys), " a")
        before = LAWS[0].spread_over(law.keys)
        bets = mechanisms.laws(law, keys, len(keys))
        view = View(law, table, [("all",), ("last", keys[-1])], [before])
        evidence.add(view, seen, bets)
        said += (seen,)
        keys.append(law.keys[seen])
        mechanisms.see(keys[-1])
    return math.exp(evidence.log_wealth)


def expected(length: int) -> float:
    """The mean wealth over all texts."""
    total = 0.0
    for choice in product(range(3), repeat=length):
        chance, said = 1.0, ()
        for seen in choice:
            law = law_after(said)
            if seen >= len(law.keys):
                chance = 0.0
                break
            chance *= law.chances[seen]
            said += (seen,)
        if chance:
            total += chance * walk(list(choice))
    return total


def test_the_mean_wealth_is_1_under_the_law() -> None:
    """By enumeration of all texts of four tokens; what the tail's rounding costs is all."""
    assert 1 - 4 * 5 * ROUNDING < expected(4) <= 1 + 1e-12


def factors(law: Bins, slack: float) -> np.ndarray:
    """The factor of every expert for every bin, (B, E), after some tokens to learn from."""
    table = features(law, [" a", " b", " a"], 3, " b")
    others = [law.chances[::-1].copy()]
    rows = []
    for seen in range(len(law.keys)):
        evidence = Evidence(len(NAMES), 1, 1)
        for earlier in (0, 0, 0, 1):
            evidence.add(View(law, table, ["all"], others), earlier, slack=slack)
        before = evidence._wealth
        evidence.add(View(law, table, ["all"], others), seen, slack=slack)
        rows.append(np.exp(evidence._wealth - before))
    return np.array(rows)


def test_within_the_slack_no_expert_gains() -> None:
    """Laws on the edge of the slack: without it experts gain up to a percent and more."""
    law, slack = LAWS[0], 0.03
    worst = law.chances * np.array([1 + 0.6 * slack, 1 - slack, 1.0])
    assert worst.sum() == pytest.approx(1)
    assert (worst @ factors(law, 0.0)).max() > 1.005
    other = law.chances * np.array([1 - 0.6 * slack, 1 + slack, 1.0])
    for edge in (worst, other):
        assert (edge @ factors(law, slack)).max() <= 1 + 1e-12


def test_a_token_that_is_not_shown_never_raises_the_mean() -> None:
    """The least factor replaces that of one bin, so the mean can only fall."""
    law = LAWS[0]
    table = features(law, [" a"], 1, " a")
    means = 0.0
    for seen, chance in enumerate(law.chances.tolist()):
        evidence = Evidence(len(NAMES), 1, 1)
        view = View(law, table, ["all"], [law.chances[::-1]])
        evidence.add(view, None if seen == 0 else seen)
        means += chance * math.exp(evidence.log_wealth)
    assert means < 1


def sampled(seed: int, count: int, tilt: float) -> Evidence:
    """Tokens of a law whose first bin has its odds multiplied by e^tilt; stops when rejected."""
    generator = np.random.default_rng(seed)
    evidence = Evidence(len(NAMES), 1, 0)
    law = LAWS[0]
    weights = law.chances * np.exp([tilt, 0.0, 0.0])
    table = features(law, [" c"], 1, None)
    for seen in generator.choice(3, size=count, p=weights / weights.sum()).tolist():
        evidence.add(View(law, table, ["all"]), seen)
        if evidence.log_wealth >= needed(0.05):
            break
    return evidence


def test_an_honest_law_is_rarely_rejected_at_any_time() -> None:
    """40 sequences looked at after each of 50 tokens, at level 5%: more than 7 rejections have a
    chance of 0.2% at most; seeds are fixed."""
    rejected = sum(sampled(seed, 50, 0.0).log_wealth >= needed(0.05) for seed in range(40))
    assert rejected <= 7


def test_a_token_of_stated_chance_0_ruins_no_expert() -> None:
    law = Bins.of({" a": math.log(0.7), " b": math.log(0.5)})  # above 1 in all, so no tail
    evidence = Evidence(len(NAMES), 1)
    evidence.add(View(law, features(law, [" a"], 1, None), ["all"]), 2)
    assert abs(evidence.log_wealth) < 5
    assert np.isfinite(evidence._wealth).all()


def test_a_wrong_law_is_rejected() -> None:
    assert all(sampled(seed, 300, 1.2).log_wealth >= needed(0.05) for seed in range(4))


@pytest.mark.slow
def test_the_smallest_bias_is_found_as_often_as_it_says() -> None:
    """40 sequences, each to be missed with a chance of 5%: more than 7 misses have a chance of
    0.07%."""
    count, alpha = 600, 0.05
    least = smallest_bias([0.5] * count, alpha)
    assert least is not None
    tilt = math.log((0.5 + least) / (0.5 - least))
    missed = sum(sampled(seed, count, tilt).log_wealth < needed(alpha) for seed in range(40))
    assert missed <= 7
    assert missed / 40 <= 3.5 * MISS


def test_the_smallest_bias_falls_with_the_root_of_the_number() -> None:
    few, many = (smallest_bias([0.5] * count, 0.01) for count in (1000, 4000))
    assert few is not None
    assert many is not None
    assert few / many == pytest.approx(2, rel=0.05)
    assert smallest_bias([0.5] * 5, 0.01) is None


def test_the_interval_holds_at_all_times() -> None:
    """Over 100 sequences of 200 looks the 5% interval leaves out 0 at any look at most 13 times;
    more has a chance of 0.05%."""
    left = 0
    for seed in range(100):
        steps = np.random.default_rng(seed).choice([-0.3, 0.7], size=200, p=[0.7, 0.3])
        sums = np.cumsum(steps)
        bounds = [interval([sums[n - 1] / n] * n, 0.05) for n in (1, 5, 20, 50, 100, 200)]
        left += any(not low <= 0 <= high for low, high in bounds)
    assert left <= 13
    low, high = interval([0.2] * 2000, 0.01)
    assert low > 0.1
    assert high < 0.3
