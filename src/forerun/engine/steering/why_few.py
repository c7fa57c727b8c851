"""Explains in one line, from the draft policy's measurements, why a request had few drafted
tokens."""

from __future__ import annotations

from typing import NamedTuple

from forerun.engine.results import Stats

SHORT = 4  # rounds; of fewer there is nothing to tell


class Price(NamedTuple):
    """The measured price and benefit of rounds with drafts."""

    num_guesses: int  # scored in one pass
    pass_ratio: float  # how many times as long that pass takes as one without guesses
    speed: float | None  # of rounds with drafts against those without; None: too few were timed


def why_few(stats: Stats, price: Price | None) -> str | None:
    """The reason why little was drafted; None if there was at least one drafted token per round.

    price: None if too few passes with or without guesses were timed.
    """
    if stats.rounds < SHORT or stats.drafted >= stats.rounds:
        return None
    num_scored = sum(count > 0 for count in stats.drafted_by_round)
    asked = f"the drafter was asked in {stats.num_asked} of {stats.rounds} rounds"
    if price is None:
        return f"{asked}; what drafts cost here was still being measured"
    guesses = "1 guess" if price.num_guesses == 1 else f"{price.num_guesses} guesses"
    costs = f"scoring {guesses} makes a pass {price.pass_ratio:.1f} times as long here"
    if 2 * stats.num_asked >= stats.rounds:
        return f"{asked} and had guesses worth scoring in {num_scored}; {costs}"
    if price.speed is None or price.speed >= 1:
        return f"{asked}; {costs}"
    return (
        f"{costs}, and guesses were accepted too seldom to pay for that (rounds with drafts ran at "
        f"{price.speed:.2f}x the speed of plain ones); {asked}"
    )
