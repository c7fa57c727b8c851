"""How much of a draft would survive, at every position of a text where a round may start.

The target wrote the text x_0 .. x_(N-1).  Survival is a chance *given the text*: the chance that
x_s was drafted and accepted, rather than emitted as a correction.  With p the target's law at s,
and q the drafter's, which must depend on the text alone, that chance is

    match   P(both races pick x_s) / p(x_s),  the races sharing their noise
    ratio   min(1, q(x_s) / p(x_s))
    block   not slot by slot: the running minimum of the product of q / p along the draft

For `match` and `ratio` the chances of the slots multiply.  All three are exact: a lossless rule
emits the target's text, and a round does not depend on the rounds before it.  So one pass of each
model over the text prices every draft length and every rule.  A drafter without a law, or whose
law depends on more than the text, is asked for a guess at every position instead (`Overheard`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.base.arrays import HostArray, to_numpy
from forerun.drafters.base import Guess
from forerun.measure.texts import Text
from forerun.models.base import LanguageModel
from forerun.sampling.options import Bans, Sampling, law
from forerun.theory.overlap import acceptance, gumbel_acceptance
from forerun.trees.tree import ROOT, Tree

CHUNK = 64
"""The most rows of logits that are held in memory at once."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Survival of drafts of up to K tokens along one text of N tokens, under one rule."""

    survival: HostArray  # (N, K): chance, given the text, that a round starting here accepts > k
    drafted: HostArray  # (N,): tokens drafted by a round starting here, if K are allowed
    overlap: HostArray | None = None  # (N,): closed-form acceptance over all tokens, if known

    def visits(self, draft_length: int) -> HostArray:
        """Expected number of rounds, 0 to 1, that start at each position, (N,)."""
        num_tokens = len(self.survival)
        reach = np.concatenate([np.ones((num_tokens, 1)), self.survival[:, :draft_length]], axis=1)
        stops = reach - np.concatenate([reach[:, 1:], np.zeros((num_tokens, 1))], axis=1)
        visits = np.zeros(num_tokens + stops.shape[1] + 1)
        visits[0] = 1.0
        for place in range(num_tokens):
            visits[place + 1 : place + 1 + stops.shape[1]] += visits[place] * stops[place]
        return visits[:num_tokens]

    def rounds(self, draft_length: int) -> float:
        """Expected number of rounds that write this text."""
        return float(self.visits(draft_length).sum())

    def reached_and_accepted(self, draft_length: int) -> tuple[HostArray, HostArray]:
        """Expected number of times that each slot is reached and is accepted, both (K,)."""
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
    """Traces of a drafting model under `match`, `ratio` and `block`.

    Under greedy decoding the target's law is a point mass on the text's token.  It is not read
    from a pass over the whole text, which may round a near-tie differently.
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
    """Chance that the drafter's race picks the token, given that the target's race did."""
    p, q = target_law[token], draft_law[token]
    if q == 0:
        return 0.0
    return float(1.0 / np.maximum(target_law, draft_law * (p / q)).sum())


def trace_of_guesses(text: Text, guesses: Sequence[Guess], most: int) -> Trace:
    """The trace under `match` of a drafter that guessed at every position of the text.

    A guess survives as far as one of its paths agrees with the text.  Rules that use the draft's
    law give the same trace for guesses without a law: the target's own draw decides there too.
    """
    num_tokens = len(text.output)
    survival, drafted = np.zeros((num_tokens, most)), np.zeros(num_tokens, dtype=np.int64)
    for place, guess in enumerate(guesses[:num_tokens]):
        drafted[place] = len(guess.tokens)
        survival[place, : _agreement(guess, text.output[place : place + most])] = 1.0
    return Trace(survival, drafted)


def _agreement(guess: Guess, ahead: Sequence[int]) -> int:
    """Length of the longest path of a guess, chain or tree, that agrees with the text."""
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
    """The model's law (vocab_size,) at each position of the text's output."""
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
            weights = law(sampling, fitted, text.prompt, tokens[first:place], Bans()).weights
            yield weights / weights.sum(dtype=np.float64)


def slot_by_slot(hits: HostArray, most: int) -> HostArray:
    """Survival (N, K): products of chances (N,) along every draft, 0 past the text's end."""
    return np.cumprod(_windows(hits, most), axis=1)


def block_wise(ratios: HostArray, most: int) -> HostArray:
    """Survival (N, K) under `block`, from ratios q / p (N,)."""
    products = np.cumprod(_windows(ratios, most), axis=1)
    return np.minimum(np.minimum.accumulate(products, axis=1), 1.0)


def _windows(values: HostArray, most: int) -> HostArray:
    padded = np.concatenate([values, np.zeros(most)])
    return np.lib.stride_tricks.sliding_window_view(padded, most)[: len(values)]
