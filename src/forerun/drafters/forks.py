"""Chooses the children of draft nodes, given a model's logits over the vocabulary at each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray, numpy_namespace
from forerun.drafters.base import Turn
from forerun.drafters.level_growth import Growth
from forerun.drafters.likeliest import likeliest
from forerun.noise.race import Purpose, coin, draw, exponentials, race, seed_key
from forerun.sampling.options import Bans
from forerun.sampling.options import law as law_of
from forerun.trees.sibling_laws import Children, draw_children

NUM_RACERS = 64
"""The number of likeliest tokens that take part in the race to become children of a tree node."""


@dataclass(frozen=True)
class Fork:
    """A draft node to extend, and the distribution (V,) that its children come from."""

    growth: Growth
    node: int
    law: HostArray
    is_greedy: bool = False  # the child of a chain is the likeliest token of the law


def fork(
    growth: Growth,
    node: int,
    logits: HostArray,
    vocab_size: int,
    temperature: float | None = None,
    *,
    shared_noise: bool,
) -> Fork | None:
    """Make the fork of a node from the drafting model's logits and the request's options.

    temperature: of the drafter; None uses the request's.

    At temperature 0 all probability is on one token. But a tree also takes other tokens, and under
    shared noise a chain reports how likely its guess is; both use the distribution at temperature
    1. Only sampled tokens that the rule judges by their own probability get the greedy one.
    Returns None if the options leave no token, or if the grammar rejects the drafted text.
    """
    if np.isnan(logits).any():
        raise ValueError("its logits hold NaN")
    turn = growth.turn
    sampling = turn.sampling
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    is_greedy = sampling.temperature == 0
    if is_greedy and (shared_noise or not growth.is_chain):
        sampling = replace(sampling, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0)
    fitted = np.full(vocab_size, -np.inf, dtype=logits.dtype)
    size = min(vocab_size, len(logits))
    fitted[:size] = logits[:size]
    try:
        text = growth.text
        output = [*text.output, *growth.path(node)]
        mass = law_of(sampling, fitted, text.prompt, output, Bans()).weights
    except Exception:
        return None
    return Fork(growth, node, np.asarray(mass / mass.sum(dtype=np.float64)), is_greedy)


def grow_sampled(forks: Sequence[Fork], how: Children) -> None:
    """Add children drawn with the drafter's own noise, one random number for each."""
    for parent in forks:
        growth, places = parent.growth, parent.growth.places_after(parent.node)
        addresses = iter(places)

        def choose(law: HostArray, turn: Turn = growth.turn, places: Any = addresses) -> int:
            return _draw(law, turn, next(places))

        tokens, laws = draw_children(how, parent.law, len(places), choose)
        for place, token, law in zip(places, tokens, laws, strict=True):
            growth.add(parent.node, token, place, float(law[token]), law)


def grow_racing(forks: Sequence[Fork]) -> None:
    """Add as children the first tokens to arrive in the target's race at the children's
    position."""
    chains = [parent for parent in forks if parent.growth.is_chain]
    trees = [parent for parent in forks if not parent.growth.is_chain]
    racing = [parent for parent in chains if not parent.is_greedy]
    pairs = [(parent, int(parent.law.argmax())) for parent in chains if parent.is_greedy]
    if racing:
        pairs += zip(racing, race(numpy_namespace(), *_racing(racing)).tolist(), strict=True)
    for parent, token in pairs:
        parent.growth.add(parent.node, token, parent.growth.level, float(parent.law[token]))
    if trees:
        laws, key, positions = _racing(trees)
        racers = likeliest(laws, NUM_RACERS)  # (F, N)
        noise = exponentials(numpy_namespace(), key, positions, racers)
        greedy = np.array([parent.growth.turn.sampling.temperature == 0 for parent in trees])
        speed = np.take_along_axis(laws, racers, axis=1) / np.where(greedy[:, None], 1.0, noise)
        # If the target's logits were the drafter's plus Gumbel noise, the chance of each racer to
        # win would be proportional to its speed.
        shares = speed / speed.sum(axis=1, keepdims=True)
        order = np.argsort(-shares, axis=1, kind="stable")
        for index, parent in enumerate(trees):
            places = parent.growth.places_after(parent.node)
            for place, racer in zip(places, order[index], strict=False):
                if shares[index, racer] > 0:
                    token, share = int(racers[index, racer]), float(shares[index, racer])
                    parent.growth.add(parent.node, token, place, share)


def _draw(law: HostArray, turn: Turn, place: int) -> int:
    """Draw a token from a law (V,) with the random number of one place in the draft."""
    key = seed_key(numpy_namespace(), [turn.seed], None)
    unit = coin(numpy_namespace(), key, np.array([turn.position]), [place], Purpose.DRAFT)[:, 0]
    return int(draw(numpy_namespace(), law[None, :], unit)[0])


def _racing(forks: Sequence[Fork]) -> tuple[HostArray, Any, HostArray]:
    """The laws (F, V), noise keys and positions (F,) with which the children of F forks are
    raced."""
    turns = [parent.growth.turn for parent in forks]
    positions = [parent.growth.turn.position + parent.growth.level for parent in forks]
    key = seed_key(numpy_namespace(), [turn.seed for turn in turns], None)
    return np.stack([parent.law for parent in forks]), key, np.array(positions)
