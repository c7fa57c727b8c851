"""What is known of coins that lie at positions: by hand, and against a simulated server."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.audit.bins import Bins
from forerun.audit.features import run_of
from forerun.audit.mechanisms import CoinFilter, Mechanisms


@pytest.mark.parametrize("num_coins", [1, 2])
@pytest.mark.parametrize("chance", [0.2, 0.5, 0.9])
def test_a_first_round_is_lossless(num_coins: int, chance: float) -> None:
    """No coin is known yet, so every guess comes as often as the target says."""
    coins = CoinFilter(num_coins, length=3)
    coins.start()
    for _ in range(3):
        assert coins.chance(chance) == pytest.approx(chance)
        coins.see(True)
    assert coins.chance(chance) is None  # the token after a whole draft is not tested


def test_a_coin_that_failed_is_remembered() -> None:
    """Two guesses of chance p: slot 2 is tested against p^2, slot 1 against p / (1 + p).  If both
    fail, the next round's first slot meets the coin of slot 2, which did not fall below p^2."""
    p = 0.4
    share = p / (1 + p)
    for num_coins, success in ((1, (share - p**2) / (1 - p**2)), (2, share / (1 + p))):
        coins = CoinFilter(num_coins, length=2, _sum=p)
        coins.start()
        coins.chance(p)
        coins.see(False)
        assert coins.chance(p) == pytest.approx(1 - (1 - success) * (1 - p**2))
        coins.start()
        assert coins.chance(p) == pytest.approx(p)


def text_of(rng: np.random.Generator, p: float, length: int, num_guesses: int) -> list[bool]:
    """Whether each token was the guess, which has chance p everywhere: block verification with one
    coin a slot, at the slot's position."""
    coins = rng.random(length + num_guesses)
    pi = p ** np.arange(1, num_guesses + 1)
    tests = [*((pi[:-1] - pi[1:]) / (1 - pi[1:])), pi[-1]]
    text: list[bool] = []
    while len(text) < length:
        first = len(text)
        passed = [slot for slot in range(num_guesses) if coins[first + slot] < tests[slot]]
        kept = passed[-1] + 1 if passed else 0
        is_bonus = kept == num_guesses
        text += [True] * kept + [bool(is_bonus and rng.random() < p)]
    return text[:length]


def test_what_is_predicted_is_what_a_server_does() -> None:
    """4,000 texts: calibrated where guesses are predicted to come less often than they should.

    The mean of n predictions differs from the mean of what came by more than 4 / sqrt(4 n) with a
    chance of 6e-5 at most; the target's own chance is off by more than that.
    """
    rng, coins, p = np.random.default_rng(3), CoinFilter(1, length=4, _sum=0.6), 0.6
    predicted, came = [], []
    for _ in range(4000):
        coins.start()
        for is_guess in text_of(rng, p, 6, 4):
            chance = coins.chance(p)
            if chance is not None and chance < p - 0.05:
                predicted.append(chance)
                came.append(is_guess)
            coins.see(is_guess)
    bound = 4 / np.sqrt(4 * len(came))
    assert len(came) > 1000
    assert abs(np.mean(predicted) - np.mean(came)) < bound
    assert p - np.mean(came) > 2 * bound


def test_laws_sum_to_1_and_a_lost_text_is_not_bet_on() -> None:
    law = Bins.of({" a": math.log(0.5), " b": math.log(0.3)})
    known = Mechanisms()
    text = [" a", " b", " b"] * 3 + [" a", " b"]  # which every copy continues with " b"
    known.start()
    known.laws(law, text, len(text))
    known.see(" a")
    text = [*text, " a", " b"]
    bets = known.laws(law, text[:-1], len(text) - 1)
    assert all(bet.sum() == pytest.approx(1) for bet in bets)
    by_drafts = {m.drafts.__name__: bet for m, bet in zip(known.known, bets, strict=True)}
    assert by_drafts["copies"][1] < 0.3  # it failed before, so its coin is known
    assert by_drafts["likeliest"][0] == 0.5  # which was right
    assert by_drafts["second"][1] < 0.3
    known.lose_track()
    assert all(bet is law.chances for bet in known.laws(law, text, len(text)))
    known.see(" a")


def test_a_run_is_drafted_at_once() -> None:
    text = list("xabcdyab")
    assert run_of(text, len(text), 4) == list("cdya")
    assert run_of(list("abab"), 4, 4) == list("abab")
    assert run_of(list("abc"), 3, 4) == []
