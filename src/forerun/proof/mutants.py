"""Verifiers with bugs that have really shipped, kept to check that `certify` rejects them.

Each is ordinary NumPy code made from `broken.py`, or a rule with a wrong addressing of its noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.noise.addresses import Addressing, by_round
from forerun.proof.broken import (
    BlockAtOneAddress,
    SharedUniform,
    argmax_correction,
    bare_target,
    block,
    bonus_after_refusal,
    coarse_exponentials,
    coins_by_position,
    descend,
    drafts_by_position,
    draw_and_prune,
    draw_confident,
    draw_from,
    draw_one_row,
    draw_reporting_row,
    first_unchecked,
    from_argmax,
    from_few_bits,
    likeliest_first,
    off_by_one,
    one_coin,
    owed,
    padded_vocabulary,
    redraw_on_mismatch,
    sample_per_path,
    sharpened,
    stale_rows,
    top_children_as_sampled,
    traverse,
    walk,
)
from forerun.proof.cases import standard_cases, tree_cases
from forerun.proof.certificate import Certificate
from forerun.proof.certify import certify, silent
from forerun.proof.rounds import Drawer, DrawnAs, Verifier
from forerun.rules.base import Rule
from forerun.rules.block import Block
from forerun.trees.sibling_laws import Children

LONG_TO_FOLLOW = ("good drafter", "longer draft")
"""Cases that take half a minute, because random numbers are used again over several rounds."""


@dataclass(frozen=True)
class Mutant:
    """A wrong verifier, or a wrong way of drawing, with a description of the bug."""

    name: str
    story: str
    subject: Verifier | Rule
    draw: Drawer | None = None
    on_trees: bool = False
    addressing: Addressing = by_round

    def certificate(self, seed: int = 0) -> Certificate:
        """Certify the mutant on the cases meant for it."""
        cases = list(tree_cases(seed) if self.on_trees else standard_cases(seed))
        if self.addressing is not by_round:
            cases = [case for case in cases if case.name not in LONG_TO_FOLLOW]
        return certify(
            self.subject,
            draw=self.draw,
            name=self.name,
            cases=cases,
            seed=seed,
            addressing=self.addressing,
            progress=silent,
        )


def _on_trees(
    name: str, story: str, verify: Verifier = descend, draw: Drawer | None = None
) -> Mutant:
    """A mutant for trees. By default its verifier is correct and only its drawing is wrong."""
    return Mutant(name, story, verify, draw, on_trees=True)


_without_replacement = DrawnAs(Children.WITHOUT_REPLACEMENT)
_shared = SharedUniform()

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "wrong q",
        "drawn at a lower temperature than the distribution that is reported",
        walk,
        draw_from(lambda row: sharpened(row, 1.5)),
    ),
    Mutant(
        "truncated q",
        "drawn after top-2, reported before it",
        walk,
        draw_from(lambda row: sharpened(np.where(row >= np.sort(row)[-2], row, 0.0), 1.0)),
    ),
    Mutant(
        "argmax as sampled",
        "the likeliest token, verified as if it had been sampled",
        walk,
        draw_from(from_argmax),
    ),
    Mutant(
        "top-2 as sampled",
        "deterministic children of a node, verified as if sampled",
        top_children_as_sampled,
    ),
    Mutant(
        "residual is p",
        "after a refusal the token comes from p, not (p - q)+",
        lambda x, q, p, rng: walk(x, q, p, rng, correction=lambda a, b: a),
    ),
    Mutant(
        "residual is |p - q|",
        "the residual is not clipped at zero",
        lambda x, q, p, rng: walk(x, q, p, rng, correction=lambda a, b: np.abs(a - b) + 1e-300),
    ),
    Mutant(
        "shared uniform",
        "one number both draws the draft token and accepts it",
        _shared.verify,
        _shared.draw,
    ),
    Mutant("one coin", "a reseeded generator: every slot sees the same coin", one_coin),
    Mutant(
        "drops the unsure",
        "sampled tokens of low probability are discarded unverified",
        walk,
        draw_confident,
    ),
    Mutant(
        "block, stops early",
        "block verification that ends at the first failed coin",
        lambda x, q, p, rng: block(x, q, p, rng, stop_at_failure=True),
    ),
    Mutant(
        "block, token residual",
        "block thresholds with the residual of the ratio rule",
        lambda x, q, p, rng: block(x, q, p, rng, token_residual=True),
    ),
    Mutant(
        "block, q = 1",
        "block thresholds with q = 1 for a draft that has a distribution",
        lambda x, q, p, rng: block(x, q, p, rng, point=True),
    ),
    Mutant(
        "block, whole product",
        "block thresholds from min(1, P / Q) of the whole prefix",
        lambda x, q, p, rng: block(x, q, p, rng, whole=True),
    ),
    Mutant(
        "block, one address",
        "every coin of a round is the same number, looked up at slot 0",
        BlockAtOneAddress(),
    ),
    Mutant(
        "coins by position",
        "block verification that meets a failed coin again in the next round",
        Block(),
        addressing=coins_by_position,
    ),
    Mutant(
        "drafts by position",
        "a position drafted again in the next round is drawn with the same number",
        Block(),
        addressing=drafts_by_position,
    ),
    Mutant(
        "coin is 0",
        "the coin is hard-wired to 0: nothing is ever refused",
        lambda x, q, p, rng: walk(x, q, p, rng, lambda a, b, t: 1.0),
    ),
    Mutant(
        "coarse noise",
        "race noise of a few bits that can be exactly 0",
        coarse_exponentials,
        draw_from(from_argmax),
    ),
    Mutant(
        "coarse q",
        "drawn from a distribution in low precision, verified in high",
        walk,
        draw_from(from_few_bits),
    ),
    Mutant("stale rows", "every slot judged by the distribution before the draft", stale_rows),
    Mutant("off by one", "slot i judged by the target's row i + 1", off_by_one),
    Mutant("first unchecked", "the first draft token is committed unverified", first_unchecked),
    Mutant(
        "divides by max p",
        "accepts with p(x) / max p instead of p(x) / q(x)",
        lambda x, q, p, rng: walk(x, q, p, rng, lambda a, b, t: a[t] / a.max()),
    ),
    Mutant(
        "argmax correction",
        "the residual's likeliest token instead of a sample",
        argmax_correction,
    ),
    Mutant(
        "redraws on mismatch",
        "sample-and-match that draws again after a mismatch",
        redraw_on_mismatch,
    ),
    Mutant("padded vocabulary", "padding columns keep probability", padded_vocabulary),
    Mutant(
        "bonus from the last slot",
        "the bonus token uses the row before the last draft token",
        lambda x, q, p, rng: walk(x, q, p, rng, bonus_row=-2 if len(x) else -1),
    ),
    Mutant(
        "bonus after a refusal",
        "a refusal in the last slot is taken for full acceptance",
        bonus_after_refusal,
    ),
    Mutant("bare target probability", "accepts with p(x), resamples from p", bare_target),
    Mutant(
        "drafts from one row",
        "K tokens without replacement from one position",
        walk,
        draw_one_row,
    ),
    _on_trees(
        "top-k tree as sampled",
        "the likeliest children of every node, verified as if sampled",
        descend,
        draw_reporting_row(Children.LIKELIEST),
    ),
    _on_trees(
        "no replacement as sampled",
        "siblings drawn without replacement, verified as if independent",
        descend,
        draw_reporting_row(Children.WITHOUT_REPLACEMENT),
    ),
    _on_trees(
        "greedy + 1, whole row",
        "the drawn one of greedy-plus-one children verified by the whole row",
        descend,
        draw_reporting_row(Children.GREEDY_PLUS_ONE),
    ),
    _on_trees(
        "a sample per path",
        "paths that share nodes are matched with target samples of their own",
        sample_per_path,
        DrawnAs(Children.LIKELIEST),
    ),
    _on_trees(
        "wrong sibling order",
        "siblings drawn without replacement, tried last one first",
        lambda x, q, p, rng, tree: descend(x, q, p, rng, tree, order=reversed),
        _without_replacement,
    ),
    _on_trees(
        "best sibling first",
        "siblings tried in the order of p(x) / q(x), which looks at the tokens",
        likeliest_first,
    ),
    _on_trees(
        "siblings against p",
        "every sibling judged by p itself, not by what the others left",
        lambda x, q, p, rng, tree: descend(x, q, p, rng, tree, update=lambda a, b: a),
    ),
    _on_trees(
        "residual not renormalised",
        "the next sibling meets (P - q)+ undivided by its sum",
        lambda x, q, p, rng, tree: descend(x, q, p, rng, tree, update=owed),
    ),
    _on_trees(
        "tree correction from p",
        "after all siblings failed the token comes from p, not the last residual",
        lambda x, q, p, rng, tree: descend(x, q, p, rng, tree, correction=lambda a, b: a),
    ),
    _on_trees(
        "prunes a sampled tree",
        "sampled nodes of low probability are dropped unverified",
        descend,
        draw_and_prune,
    ),
    _on_trees(
        "traversal, debt kept",
        "a node whose child failed tosses the coin it had before",
        lambda x, q, p, rng, tree: traverse(x, q, p, rng, tree, chance_left=lambda r, s: r),
    ),
    _on_trees(
        "traversal, token residual",
        "traversal's coins with the residual of the siblings rule",
        lambda x, q, p, rng, tree: traverse(x, q, p, rng, tree, token_residual=True),
    ),
)
"""Every mutant; `certify` must reject each."""
