"""Certifies that a verifier is lossless: by enumeration if possible, else by a powered test.

A round is lossless when its emitted tokens, followed by whatever rounds come next, have the
target's joint law.  That joint law is what is compared, so a correct first token with a wrong
second one is caught.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np

from forerun import rules
from forerun.base.arrays import HostArray
from forerun.base.errors import ForerunError, InputError, explain
from forerun.base.signatures import shown_by
from forerun.noise.addresses import Addressing, by_round
from forerun.proof.branches import CannotEnumerate, Memory, Path, every_path
from forerun.proof.calling import check_call, failing
from forerun.proof.cases import Case, standard_cases, tree_cases
from forerun.proof.certificate import Certificate, Finding
from forerun.proof.chance import NO_RNG, Chance
from forerun.proof.drawing import DrawnAs, draw_plainly
from forerun.proof.law import (
    Emission,
    Model,
    Prefix,
    Shape,
    Step,
    joint,
    rule_step,
    target_law,
    tree_rows,
)
from forerun.proof.telling import Telling
from forerun.rules.base import Rule
from forerun.trees.tree import Tree

Verifier = Callable[..., Sequence[int]]
"""f(draft_tokens (K,), draft_probs (K, V), target_probs (K + 1, V), rng) -> emitted ids.

In a case with a tree the rows are ordered as in `Trial`, and the tree is a fifth argument.
"""
Drawer = Callable[[Model, Any, Any], tuple[Any, ...]]
"""d(model, K or tree, rng) -> (tokens, the probabilities (K, V) it reports for them).

A drawer that changes the shape returns the tree it ended with as a third item.
"""

Progress = Callable[[str, int, int], None]
"""p(case, done, total): called as the work goes on, with cases or sampled texts done."""

EXACT_LIMIT = 1e-12
FALSE_ALARM = 1e-6
MISS = 1e-3
MAX_PATHS = 200_000
REPEATED_PATHS = 32
TOLD_EVERY = 500

LABELS = {
    "point": "argmax",
    "without_replacement": "no replacement",
    "greedy_plus_one": "greedy + 1",
}
"""How a case drawn in another way than its plain one is called."""


@shown_by("fr.certify(verify)  # def verify(tokens, draft_probs, target_probs, rng)")
def certify(
    subject: str | Rule | Verifier,
    *,
    draw: Drawer | None = None,
    name: str | None = None,
    cases: Iterable[Case] | None = None,
    samples: int = 100_000,
    method: str = "auto",
    seed: int = 0,
    addressing: Addressing = by_round,
    progress: Progress | None = None,
) -> Certificate:
    """Certify a rule, by name or object, or a function of your own.

    subject: a rule, or f(draft_tokens, draft_probs, target_probs, rng) -> emitted ids, written
        as for a numpy.random.Generator.
    draw: how the draft is drawn, d(model, K, rng) -> (tokens, probabilities it reports), where
        model(prefix) gives a row (V,); by default each token is drawn from its row.
    cases: by default the standard ones, and for a rule that judges trees also `tree_cases`.  With
        those a function gets the tree as its fifth argument, and `draw` gets it in place of K.
    method: "exact", "sampled", or "auto": exact where the outcomes can be listed.
    samples: texts per case for the sampled test.
    addressing: of a rule's noise.  A number that is met twice, within a round or over rounds, is
        a finding even where it does no harm.
    progress: called as progress(case, done, total); without it what takes long is told on
        standard error: that sampling begins and why, how far it is, and the time left.
    """
    if method not in ("auto", "exact", "sampled"):
        cure = "Use 'auto', 'exact' or 'sampled'."
        raise InputError(explain("method is not known.", repr(method), cure))
    if samples < 1000:
        cure = "Use 1000 at the very least; 100000 catches a bias of about 0.02."
        raise InputError(explain("Too few samples to say anything.", samples, cure))
    chosen = list(standard_cases(seed) if cases is None else cases)
    is_rule = isinstance(subject, str) or hasattr(subject, "decide")
    telling = Telling()
    tell = progress or telling
    reason = ""
    if is_rule and draw is None:
        rule = rules.get(subject)  # type: ignore[arg-type]
        if cases is None and rule.judges_trees:
            chosen += tree_cases(seed)
        findings = []
        for done, case in enumerate(chosen):
            tell(case.name, done, len(chosen))
            findings += [_rule_finding(rule, case, way, addressing) for way in case.ways]
        telling.end()
        return Certificate(name or rule.name, tuple(findings))
    if is_rule:
        cure = "Pass your own verifier function together with draw."
        raise InputError(explain("A rule is certified with its own way of drawing.", draw, cure))
    if not callable(subject):
        cure = f"Pass a rule or its name ({', '.join(rules.names())}), or a function."
        raise InputError(explain("That verifies nothing.", type(subject).__name__, cure))
    if addressing is not by_round:
        wrong, cure = "A function is handed its numbers.", "Pass a rule together with addressing."
        raise InputError(explain(wrong, f"addressing={addressing}", cure))
    function: Verifier = subject
    label = name or str(getattr(subject, "__name__", "function"))
    drawer = draw or draw_plainly
    has_trees = any(isinstance(_shape_of(case), Tree) for case in chosen)
    check_call(function, label, num_arguments=5 if has_trees else 4)
    if method != "sampled":
        try:
            findings = []
            for done, case in enumerate(chosen):
                tell(case.name, done, len(chosen))
                findings.append(_exact_finding(function, drawer, case))
            telling.end()
            return Certificate(label, tuple(findings))
        except ForerunError:
            raise
        except Exception as error:  # code that fails for another reason fails when sampled too
            is_known = isinstance(error, CannotEnumerate)
            reason = f"use of {error}" if is_known else f"{type(error).__name__}: {error}"
            if not is_known:  # nor is code that always fails worth an announcement
                with failing(label, chosen[len(findings)].name):
                    _sampled_finding(function, drawer, chosen[len(findings)], 1, seed, range(1))
            if method == "exact":
                cure = "Use method='sampled', or draw with rng.random() and rng.choice()."
                wrong = "The function's outcomes cannot be listed."
                raise InputError(explain(wrong, reason, cure)) from error
    some = [case for case in chosen if case.sampled] or chosen
    if reason and progress is None:
        telling.begin(
            f"certify: the outcomes of {label} cannot be listed ({reason}), so {samples:,} texts "
            f"are sampled for each of {len(some)} cases; fewer `samples` take less time"
        )
    findings = []
    for number, case in enumerate(some):
        turns = _turns(tell, case, number * samples, samples, samples * len(some))
        with failing(label, case.name):
            findings.append(_sampled_finding(function, drawer, case, samples, seed, turns))
    telling.end()
    return Certificate(label, tuple(findings), reason)


def _turns(tell: Progress, case: Case, before: int, samples: int, total: int) -> Iterator[int]:
    """The sample numbers of a case; reports progress now and then."""
    for done in range(samples):
        if done % TOLD_EVERY == 0:
            tell(case.name, before + done, total)
        yield done


def _rule_finding(rule: Rule, case: Case, way: str, addressing: Addressing) -> Finding:
    step = rule_step(rule, case.target, case.draft, way, addressing)
    bias = _bias(joint(step, case.vocab_size, case.length, case.draft_length), case)
    label = case.name if way == "sampled" else f"{case.name}, {LABELS[way]}"
    note = f"address met twice: {min(step.reused)}" if step.reused else ""
    return Finding(label, "exact", bias, EXACT_LIMIT, EXACT_LIMIT, 1.0, note=note)


def _exact_finding(function: Verifier, draw: Drawer, case: Case) -> Finding:
    try:
        step = _exact_step(function, draw, case)
        bias = _bias(joint(step, case.vocab_size, case.length, case.draft_length), case)
        return Finding(case.name, "exact", bias, EXACT_LIMIT, EXACT_LIMIT, 1.0)
    except InvalidEmission as fault:
        return Finding(case.name, "exact", 1.0, 0.0, EXACT_LIMIT, 1.0, note=str(fault))


class InvalidEmission(Exception):
    """The function returned something that is not a list of emitted tokens."""


def _exact_step(function: Verifier, draw: Drawer, case: Case) -> Step:
    """One round of a user's code, drawing included, over every outcome of its rng."""
    uses = 0  # questions that the function asked its rng

    def watched(tokens: Any, draft: Any, target: Any, rng: Chance, *more: Any) -> Sequence[int]:
        nonlocal uses
        before = rng.num_uses
        emitted = function(tokens, draft, target, rng, *more)
        uses += rng.num_uses - before
        return emitted

    def after(prefix: Prefix, shape: Shape) -> Emission:
        outcomes = []
        for outcome in _outcomes(watched, draw, case, prefix, shape):
            outcomes.append(outcome)
            if len(outcomes) > MAX_PATHS:
                raise CannotEnumerate(f"more than {MAX_PATHS} outcomes")
        again = _outcomes(function, draw, case, prefix, shape)
        if any(one != other for one, other in zip(outcomes[:REPEATED_PATHS], again, strict=False)):
            if not uses:
                raise InputError(NO_RNG)
            raise CannotEnumerate("randomness other than its rng")
        emitted: dict[tuple[Prefix, Memory], float] = defaultdict(float)
        for tokens, weight in outcomes:
            emitted[tokens, ()] += weight
        return emitted

    return lambda prefixes, shape, memory: [after(prefix, shape) for prefix in prefixes]


def _outcomes(
    function: Verifier, draw: Drawer, case: Case, prefix: Prefix, shape: Shape
) -> Iterator[tuple[Prefix, float]]:
    """What a round can emit, and how likely, by every path through its questions.

    Somebody's drawer may leave something behind for the verifier, so it draws anew on every path.
    """

    def drawn(path: Path) -> tuple[tuple[Any, ...], float]:
        rng = Chance(path)
        return _draft(draw, case, prefix, shape, rng), rng.weight

    def whole(path: Path) -> tuple[Prefix, float]:
        rng = Chance(path)
        return _emitted(function, case, _draft(draw, case, prefix, shape, rng), rng), rng.weight

    if not isinstance(draw, DrawnAs):
        yield from every_path(whole)
        return
    for draft, chance in every_path(drawn):

        def judged(
            path: Path, draft: tuple[Any, ...] = draft, chance: float = chance
        ) -> tuple[Prefix, float]:
            rng = Chance(path, chance)
            return _emitted(function, case, tuple(map(copy, draft)), rng), rng.weight

        yield from every_path(judged)


def _draft(draw: Drawer, case: Case, prefix: Prefix, shape: Shape, rng: Any) -> tuple[Any, ...]:
    """What a verifier is given but for its rng: tokens, draft rows, target rows, and any tree."""
    answer = draw(lambda path: case.draft(prefix + path), shape, rng)
    drafted = tuple(int(token) for token in answer[0])
    if isinstance(shape, Tree):
        tree = answer[2] if len(answer) > 2 else shape
        more: tuple[Tree, ...] = (tree,)
    else:
        tree, more = Tree.chain(len(drafted)), ()
    target = tree_rows(case.target, prefix, drafted, tree)
    reported = np.asarray(answer[1], dtype=np.float64).reshape(len(drafted), case.vocab_size)
    return np.array(drafted, dtype=np.int64), reported, target, *more


def _shape_of(case: Case, prefix: Prefix = ()) -> Shape:
    """The shape of a draft after a prefix."""
    shapes = case.draft_length
    return shapes(prefix) if callable(shapes) else shapes


def _emitted(function: Verifier, case: Case, draft: tuple[Any, ...], rng: Any) -> Prefix:
    """What a verifier emits for a draft, checked."""
    tokens = function(*draft[:3], rng, *draft[3:])
    height = draft[3].height if len(draft) > 3 else len(draft[0])
    try:
        emitted = tuple(int(token) for token in tokens)
    except TypeError as error:
        wrong = "The function must return the ids that it emits, in order."
        cure = "Return a list of them: the accepted tokens and one more."
        received = f"the {type(tokens).__name__} {tokens!r:.60}"
        raise InputError(explain(wrong, received, cure)) from error
    if not 1 <= len(emitted) <= height + 1:
        raise InvalidEmission(f"emitted {len(emitted)} tokens for a draft of {height}")
    if not all(0 <= token < case.vocab_size for token in emitted):
        raise InvalidEmission(f"emitted {list(emitted)} with a vocabulary of {case.vocab_size}")
    return emitted


def _bias(emitted: HostArray, case: Case) -> float:
    """Total variation distance to the target's joint law; missing mass counts in full."""
    target = target_law(case.target, case.length)
    return float(np.abs(emitted - target).sum() / 2 + abs(emitted.sum() - 1) / 2)


def _sampled_finding(
    function: Verifier,
    draw: Drawer,
    case: Case,
    samples: int,
    seed: int,
    turns: Iterable[int],
) -> Finding:
    """Compare frequencies with the target's joint law, with both error odds bounded.

    Under losslessness the distance of n frequencies over m cells from their law exceeds
    sqrt((m log 2 + log 1/alpha) / 2n) with probability alpha at most (Weissman et al.); a bias
    larger than that by sqrt(log(1/beta) / 2n) stays below it with probability beta at most
    (Hoeffding, on the set of cells where the laws differ most).
    """
    rng = np.random.default_rng(seed)
    counts = np.zeros((case.vocab_size,) * case.length)
    try:
        for _ in turns:
            prefix: Prefix = ()
            while len(prefix) < case.length:
                draft = _draft(draw, case, prefix, _shape_of(case, prefix), rng)
                prefix += _emitted(function, case, draft, rng)
            counts[prefix[: case.length]] += 1
    except InvalidEmission as fault:
        return Finding(case.name, "sampled", 1.0, 0.0, 1.0, 1 - MISS, note=str(fault))
    limit = math.sqrt((counts.size * math.log(2) + math.log(1 / FALSE_ALARM)) / (2 * samples))
    margin = math.sqrt(math.log(1 / MISS) / (2 * samples))
    bias = _bias(counts / samples, case)
    return Finding(case.name, "sampled", bias, limit, limit + margin, 1 - MISS, samples)
