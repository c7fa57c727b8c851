"""Drafters whose every guess is a pass, as that of a smaller model: 0.4 of a plain round each."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerun.engine.proposal import Drafted, Proposal
from forerun.engine.steering.policy import PayingPolicy

PLAIN, SLOT, LEVEL, READING = 60.0, 18.0, 24.0, 3.0  # milliseconds
PROMPT, ANSWER = 100, 96  # tokens


def request(num_tokens: int) -> Any:
    """What a policy reads of a request; its prompt has been read."""
    return SimpleNamespace(
        tokens=[0] * num_tokens,
        stats=SimpleNamespace(rounds=2),
        sampling=SimpleNamespace(temperature=0.0),
        most_guesses=lambda length: length,
    )


def speed(share: float, seed: int, num_answers: int) -> list[float]:
    """Of each answer over plain decoding, one after the other.

    share: of tokens that the drafter knows, with a chance of 0.95 and more; of the others its
    chance is 0.2 to 0.7.  It states both as they are.
    """
    coins, found = Random(seed), []
    policy = PayingPolicy()
    for _ in range(num_answers):
        policy.enter(0, request(PROMPT))
        num_tokens, num_unread, spent = 0, PROMPT, 0.0
        while num_tokens < ANSWER:
            asked = request(PROMPT + num_tokens)
            choice = policy.choose([0], [asked], [ANSWER - num_tokens])
            chances: list[float] = []
            num_right, num_levels, is_right, drafting = 0, 0, True, 0.0
            while num_levels < choice.lengths[0]:
                is_known = coins.random() < share
                chance = coins.uniform(0.95, 0.999) if is_known else coins.uniform(0.2, 0.7)
                is_right = is_right and coins.random() < chance
                num_right += is_right
                num_levels += 1
                chances.append(chance * (chances[-1] if chances else 1.0))
                if choice.prices and chances[-1] < choice.prices[0].parts[0].goes_on:  # type: ignore[union-attr]
                    break
            if num_levels:
                drafting, num_unread = num_levels * LEVEL + num_unread * READING, 0
            drafted = Drafted([Proposal([0] * num_levels, values=chances or None)])
            if num_levels:
                kept = (
                    drafted.proposals
                    if choice.tariff is None
                    else choice.tariff.trim(drafted.proposals)
                )
                drafted = Drafted(kept, num_levels, choice.is_trial, [()])
            num_scored = len(drafted.proposals[0].tokens)
            path: Sequence[int] = range(min(num_right, num_scored))
            noise = coins.lognormvariate(0, 0.05)
            seconds = [1e-3 * drafting * noise, 1e-3 * (PLAIN + SLOT * num_scored) * noise, 0.0]
            policy.learn([0], [asked], drafted, [path], seconds)
            spent += drafting + PLAIN + SLOT * num_scored
            num_tokens += 1 + len(path)
            num_unread += 1 + len(path) if not num_levels else 0
        policy.leave(0)
        found.append(num_tokens * PLAIN / spent)
    return found


@pytest.mark.parametrize(("share", "least"), [(0.97, 1.12), (0.9, 1.05)])
def test_one_that_is_mostly_right_pays(share: float, least: float) -> None:
    assert np.mean([speed(share, seed, 6) for seed in range(4)]) > least


@pytest.mark.parametrize("share", [0.6, 0.3, 0.0])
def test_one_that_does_not_pay_costs_next_to_nothing(share: float) -> None:
    found = np.array([speed(share, seed, 6) for seed in range(4)])
    assert found.mean() > 0.97
    assert found[:, 0].mean() > 0.89, "the first answer, in which it reads the prompt"
    assert found[:, 1:].mean() > 0.98
