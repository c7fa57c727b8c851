"""How much of a draft would survive, at every place of a text where a round might start.

The text is the target's own, x_0 .. x_(N-1), and the question is asked *given the text*: with what
chance was x_s drafted and kept, rather than put there by a correction?  Given x_s and a drafter
whose law q at s depends on the text alone, with p the target's,

    match   P(both races pick x_s) / p(x_s),  the races sharing their noise
    ratio   min(1, q(x_s) / p(x_s))
    block   not slot by slot: the running minimum of the product of q / p along the draft

and slots multiply.  These are exact, not approximations: the text of a lossless rule is the
target's text, and what happened before a correction does not touch what comes after it.  So one
pass of each model over the text prices every draft length and every rule.  A drafter without a law,
or whose law depends on more than the text, is asked at every place instead (`Overheard`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import HostArray, to_numpy
from forerun.drafters.base import Guess
from forerun.measure.texts import Text
from forerun.models.base import LanguageModel
from forerun.sampling import Bans, Sampling, weights
from forerun.theory.overlap import acceptance, gumbel_acceptance
from forerun.tree import ROOT, Tree

CHUNK = 64
"""Rows of logits to hold at once."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One text of N tokens and drafts of up to K, under one rule."""

    survival: HostArray  # (N, K): chance, given the text, that a round starting here accepts > k
    drafted: HostArray  # (N,): tokens that would be drafted here if there were room for K
    overlap: HostArray | None = None  # (N,): closed-form acceptance over all tokens, if known

    def visits(self, draft_length: int) -> HostArray:
        """Expected number of rounds (0 to 1) that start at each place, (N,)."""
        num_tokens = len(self.survival)
        reach = np.concatenate([np.ones((num_tokens, 1)), self.survival[:, :draft_length]], axis=1)
        stops = reach - np.concatenate([reach[:, 1:], np.zeros((num_tokens, 1))], axis=1)
        visits = np.zeros(num_tokens + stops.shape[1] + 1)
        visits[0] = 1.0
        for place in range(num_tokens):
            visits[place + 1 : place + 1 + stops.shape[1]] += visits[place] * stops[place]
        return visits[:num_tokens]

    def rounds(self, draft_length: int) -> float:
        """Expected rounds to write this text."""
        return float(self.visits(draft_length).sum())

    def reached_and_accepted(self, draft_length: int) -> tuple[HostArray, HostArray]:
        """Expected times that each slot is reached, and accepted, (K,) each."""
        visits, survival = self.visits(draft_length), self.survival[:, :draft_length]
        num_tokens = len(visits)
        reached, accepted = np.zeros(draft_length), np.zeros(draft_length)
        for slot in range(draft_length):
            starts = np.arange(max(0, num_tokens - slot))  # places whose slot lies in the text
            alive = visits[starts] * (survival[starts, slot - 1] if slot else 1.0)
            alive = alive * (self.drafted[starts] > slot)
            reached[slot] = alive.sum()
            if self.overlap is None:
                accepted[slot] = (visits[starts] * survival[starts, slot]).sum()
            else:
                accepted[slot] = (alive * self.overlap[starts + slot]).sum()
        return reached, accepted


def traces_of_laws(
    target: LanguageModel, model: LanguageModel, text: Text, draft_sampling: Sampling, most: int
) -> dict[str, Trace]:
    """Traces under `match`, `ratio` and `block` of a drafter that is a model.

    Greedy, the target's law is the text, whatever a pass over all of it says about a near-tie.
    """
    size, output = target.vocab_size, text.output
    draft_laws = laws(model, text, draft_sampling, size)
    full = np.full(len(output), most)
    if text.sampling.temperature == 0:
        hits = np.array([law[token] for law, token in zip(draft_laws, output, strict=True)])
        trace = Trace(slot_by_slot(hits, most), full, hits)
        return dict.fromkeys(("match", "ratio", "block"), trace)
    shared, ratios, coupled, overlap = [], [], [], []
    target_laws = laws(target, text, text.sampling, size)
    for token, p, q in zip(output, target_laws, draft_laws, strict=True):
        shared.append(shared_hit(p, q, token))
        ratios.append(q[token] / p[token])
        coupled.append(float(gumbel_acceptance(p, q)))
        overlap.append(float(acceptance(p, q)))
    at_most_one = np.minimum(np.array(ratios), 1.0)
    return {
        "match": Trace(slot_by_slot(np.array(shared), most), full, np.array(coupled)),
        "ratio": Trace(slot_by_slot(at_most_one, most), full, np.array(overlap)),
        "block": Trace(block_wise(np.array(ratios), most), full),
    }


def shared_hit(target_law: HostArray, draft_law: HostArray, token: int) -> float:
    """Chance that the drafter's race picks the token, given that the target's did."""
    p, q = target_law[token], draft_law[token]
    if q == 0:
        return 0.0
    return float(1.0 / np.maximum(target_law, draft_law * (p / q)).sum())


def trace_of_guesses(text: Text, guesses: Sequence[Guess], most: int) -> Trace:
    """The trace of a drafter that was asked at every place of the text, under `match`.

    A guess counts as far as a path of it agrees with the text.  It is also what law rules make of
    guesses that have no law: those are kept exactly when the target's own draw agrees.
    """
    num_tokens = len(text.output)
    survival, drafted = np.zeros((num_tokens, most)), np.zeros(num_tokens, dtype=np.int64)
    for place, guess in enumerate(guesses[:num_tokens]):
        drafted[place] = len(guess.tokens)
        survival[place, : _agreement(guess, text.output[place : place + most])] = 1.0
    return Trace(survival, drafted)


def _agreement(guess: Guess, ahead: Sequence[int]) -> int:
    """The longest path of a guess, chain or tree, that the text goes along."""
    parents = guess.parents or Tree.chain(len(guess.tokens)).parents
    children = {
        (up, token): node
        for node, (up, token) in enumerate(zip(parents, guess.tokens, strict=True))
    }
    node, depth = ROOT, 0
    while depth < len(ahead) and (node, ahead[depth]) in children:
        node, depth = children[node, ahead[depth]], depth + 1
    return depth


def laws(
    model: LanguageModel, text: Text, sampling: Sampling, vocab_size: int
) -> Iterator[HostArray]:
    """The model's law (vocab_size,) at each place of the text's output, from passes over it."""
    tokens, state = text.tokens, model.start(1, len(text.tokens))
    first = len(text.prompt)
    for begin in range(first, len(tokens), CHUNK):
        end = min(begin + CHUNK, len(tokens))
        feed = tokens[state.lengths[0] : end - 1]
        rows = to_numpy(model.score(state, [0], [feed], [end - begin]))[0]
        model.commit(state, [0], [len(feed)])
        for place, logits in enumerate(rows, start=begin):
            fitted = np.full(vocab_size, -np.inf, dtype=logits.dtype)
            fitted[: len(logits)] = logits[:vocab_size]
            law = weights(sampling, fitted, text.prompt, tokens[first:place], Bans())
            yield law / law.sum(dtype=np.float64)


def slot_by_slot(hits: HostArray, most: int) -> HostArray:
    """(N,) chances into their products along every draft, (N, K); none survives the text's end."""
    return np.cumprod(_windows(hits, most), axis=1)


def block_wise(ratios: HostArray, most: int) -> HostArray:
    """(N,) ratios q / p into survival under `block` along every draft, (N, K)."""
    products = np.cumprod(_windows(ratios, most), axis=1)
    return np.minimum(np.minimum.accumulate(products, axis=1), 1.0)


def _windows(values: HostArray, most: int) -> HostArray:
    padded = np.concatenate([values, np.zeros(most)])
    return np.lib.stride_tricks.sliding_window_view(padded, most)[: len(values)]
