"""Chooses the children of draft nodes among the few likeliest tokens of a small vocabulary.

Under shared noise the choice of tokens to consider cannot change a text, and considering few is
faster than making a law over the target's whole vocabulary. Whole laws are made where the rule
divides by draft probabilities, or where options change the logits of single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from forerun.base.arrays import HostArray, numpy_namespace
from forerun.drafters.forks import fork, grow_racing, grow_sampled
from forerun.drafters.heads.runner import Logits
from forerun.drafters.level_growth import Growth
from forerun.drafters.likeliest import likeliest
from forerun.noise.race import Key, exponentials, seed_key
from forerun.sampling.options import Sampling
from forerun.trees.sibling_laws import Children

Node = tuple[Growth, int]

NUM_RACERS = 128  # as many as in compiled lines: the law of a flat level has much beyond the first


def grow(
    nodes: Sequence[Node],
    logits: Logits,
    rows: Sequence[int],
    draft_tokens: HostArray,
    vocab_size: int,
    shared_noise: bool,
) -> None:
    """Add children to nodes (N,).

    logits: (M, Vd). rows: (N,), each node's row of logits; nodes with the same row belong to one
    draft.
    draft_tokens: the target's ids of the draft vocabulary (Vd,), or those of each row (M, Vd).
    """
    is_shared = draft_tokens.ndim == 1
    few: list[int] = []
    forks = []
    for index, (growth, node) in enumerate(nodes):
        if shared_noise and not is_about_tokens(growth.turn.sampling):
            few.append(index)
            continue
        wide = np.full(vocab_size, -np.inf, np.float32)
        wide[draft_tokens if is_shared else draft_tokens[rows[index]]] = logits[rows[index]]
        parent = fork(growth, node, wide, vocab_size, shared_noise=shared_noise)
        forks += [parent] if parent else []
    if few:
        _grow_from_few([nodes[i] for i in few], logits, [rows[i] for i in few], draft_tokens)
    if shared_noise:
        grow_racing(forks)
    else:
        grow_sampled(forks, Children.GREEDY_PLUS_ONE)


def _grow_from_few(
    nodes: Sequence[Node], logits: Logits, rows: Sequence[int], draft_tokens: HostArray
) -> None:
    """Add the tokens that arrive first in the target's race, or for greedy requests the likeliest
    ones."""
    places = [growth.places_after(node) for growth, node in nodes]
    used = {row: growth for row, (growth, _) in zip(rows, nodes, strict=True)}
    number = {row: index for index, row in enumerate(used)}
    growths, laws, ids = list(used.values()), logits, draft_tokens
    if len(used) < len(logits) or len(used) < len(nodes):
        laws, ids = logits[list(used)], ids if ids.ndim == 1 else ids[list(used)]
    if all(growth.turn.sampling.temperature == 0 for growth in growths):
        columns, shares = _likeliest(laws, max(map(len, places)))
    else:
        columns, shares = _first_arrivals(growths, laws, ids)
    tokens, chances = _named(ids, columns).tolist(), shares.tolist()
    for (growth, node), row, free_places in zip(nodes, rows, places, strict=True):
        at = number[row]
        for place, token, share in zip(free_places, tokens[at], chances[at], strict=False):
            if share > 0:
                growth.add(node, token, place, share)


def is_about_tokens(sampling: Sampling) -> bool:
    """Whether options change the logits of single tokens, so that the whole vocabulary must be
    considered."""
    return bool(
        sampling.logit_bias
        or sampling.grammar is not None
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def _likeliest(logits: Logits, count: int) -> tuple[HostArray, HostArray]:
    """The columns (N, count) of the likeliest tokens, the best first, and their probabilities."""
    columns = logits.argmax(axis=1)[:, None] if count == 1 else likeliest(logits, count)
    largest = np.take_along_axis(logits, columns, axis=1)
    total = np.exp(logits - largest[:, :1]).sum(axis=1, keepdims=True)
    return columns, np.exp(largest - largest[:, :1]) / total


def _first_arrivals(
    growths: Sequence[Growth], logits: Logits, draft_tokens: HostArray
) -> tuple[HostArray, HostArray]:
    """The columns (N, C) of the first tokens to arrive in the race, in order, and each one's chance
    of being the target's choice.

    If the target's logits were the drafter's plus Gumbel noise, this chance would be proportional
    to the token's speed in the race.
    """
    turns = [growth.turn for growth in growths]
    samplings = [turn.sampling for turn in turns]
    positions = np.array([growth.turn.position + growth.level for growth in growths])
    columns = likeliest(logits, NUM_RACERS)
    racers = np.take_along_axis(logits, columns, axis=1).astype(np.float64)
    temperatures = np.array([[sampling.temperature] for sampling in samplings])
    is_greedy = temperatures == 0
    with np.errstate(over="ignore"):  # a tiny temperature gives exp(-inf) for all but the best
        law = np.exp((racers - racers[:, :1]) / np.where(is_greedy, 1.0, temperatures))
    law = np.where(is_greedy, law, _truncated(law, samplings))
    ids = _named(draft_tokens, columns)
    noise = exponentials(
        numpy_namespace(), _key(tuple(turn.seed for turn in turns)), positions, ids
    )
    speed = law / np.where(is_greedy, 1.0, noise)
    order = np.argsort(-speed, axis=1, kind="stable")
    shares = speed / speed.sum(axis=1, keepdims=True)
    return np.take_along_axis(columns, order, axis=1), np.take_along_axis(shares, order, axis=1)


def _named(draft_tokens: HostArray, columns: HostArray) -> HostArray:
    """The target's ids (N, C) of columns (N, C) of tokens (Vd,), or of each row's own (N, Vd)."""
    if draft_tokens.ndim == 1:
        return draft_tokens[columns]
    return np.take_along_axis(draft_tokens, columns, axis=1)


def _truncated(law: HostArray, samplings: Sequence[Sampling]) -> HostArray:
    """Apply top_k, top_p and min_p to relative weights (N, C) that are sorted and begin with 1."""
    if all(s.top_k is None and s.top_p == 1 and s.min_p == 0 for s in samplings):
        return law
    counts = np.array([[s.top_k or law.shape[1]] for s in samplings])
    law = np.where(np.arange(law.shape[1]) < counts, law, 0.0)
    running = np.cumsum(law, axis=1)
    is_inside = running - law < np.array([[s.top_p] for s in samplings]) * running[:, -1:]
    is_likely = law >= np.array([[s.min_p] for s in samplings])
    return np.where(is_inside & is_likely, law, 0.0)


@lru_cache(maxsize=64)
def _key(seeds: tuple[int, ...]) -> Key:
    return seed_key(numpy_namespace(), seeds, None)
