"""Certifies that a verifier is lossless: by enumeration if possible, else by a statistical test.

A round is lossless if its emitted tokens, followed by those of later rounds, have the target's
joint distribution. That joint distribution is compared, so a wrong second token after a correct
first one is detected.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from traceback import extract_tb
from typing import Any

from forerun import rules
from forerun.base.clock import now
from forerun.base.errors import ForerunError, InputError, explain, shown_by, warn
from forerun.noise.addresses import Addressing, by_round
from forerun.proof.branches import CannotEnumerate
from forerun.proof.cases import (
    Case,
    draft_lengths,
    edge_cases,
    standard_cases,
    tree_cases,
)
from forerun.proof.certificate import Certificate, Finding
from forerun.proof.exact import EXACT_LIMIT, Following, bias, format_of, rounded
from forerun.proof.law import joint, rule_step
from forerun.proof.published import as_loop, as_verifier
from forerun.proof.rounds import Drawer, Round, Verifier, Verifying, draw_plainly, shape_of
from forerun.proof.sampled import affordable, budgets, sampled_finding
from forerun.rules.base import Rule
from forerun.trees.tree import Tree

Progress = Callable[[str, int, int], None]
"""p(case, done, total): called as the work goes on, with cases or sampled texts done."""

EXACT_SECONDS = 40.0  # of following outcomes, before the cases that are left are sampled
CHECKED = 1000  # real texts by which following a global generator is checked
TOLD_EVERY = 500

LABELS = {
    "point": "argmax",
    "without_replacement": "no replacement",
    "greedy_plus_one": "greedy + 1",
}
"""The words that are added to a case's name for each way of drawing other than the plain one."""
HOW = (
    "f(draft_tokens, draft_probs, target_probs, rng) with arrays (K,), (K, V) and (K + 1, V); on "
    "trees the tree is a fifth argument"
)
"""The signature that a tested function should have, for error messages."""
FIRST = 2.0  # seconds before anything is shown
REFRESH = 0.5  # seconds between two states of the line on a terminal
QUICK = (
    "one draft token",
    "good drafter",
    "certain target",
    "nothing in common",
    "ties",
    "tree, unequal branches",
)
"""Cases that take a fraction of a second together and differ in what they expose."""

OURS = Path(__file__).parents[1]
"""The folder of this package, whose lines are not the user's."""

_judged: set[Hashable] = set()


@shown_by("fr.certify(verify)  # def verify(tokens, draft_probs, target_probs, rng)")
def certify(
    subject: str | Rule | Verifier,
    *,
    draw: Drawer | None = None,
    name: str | None = None,
    cases: Iterable[Case] | None = None,
    samples: int | None = None,
    method: str = "auto",
    seed: int = 0,
    addressing: Addressing = by_round,
    progress: Progress | None = None,
) -> Certificate:
    """Certify a rule, by name or object, or your own function.

    subject: a rule, or f(draft_tokens, draft_probs, target_probs, rng) -> emitted ids, written for
    a numpy.random.Generator. It may draw from NumPy's or Torch's global generator instead, and gets
    tensors if its parameters are annotated as such. Functions with the signature of one of the
    exercises in `forerun.classic` are called as the exercise says.
    draw: how the draft is drawn, d(model, K, rng) -> (tokens, the probabilities it reports), where
    model(prefix) gives a row (V,); by default each token is drawn from its row.
    cases: by default the standard ones and the edge cases, and for a rule that judges trees also
    `tree_cases`. In tree cases a function gets the tree as its fifth argument, and `draw` gets it
    in place of K.
    method: "exact", "sampled", or "auto": exact if the outcomes can be listed in 40 seconds.
    samples: texts per case for the sampled test; by default as many as take 15 seconds.
    addressing: of a rule's noise. A number that is used twice, within a round or over rounds, is a
    finding even if it causes no bias.
    progress: called as progress(case, done, total). By default, long work is reported on standard
    error: why sampling begins, what it can detect, and the time left.
    """
    if method not in ("auto", "exact", "sampled"):
        cure = "Use 'auto', 'exact' or 'sampled'."
        raise InputError(explain("method is not known.", repr(method), cure))
    if samples is not None and samples < 1000:
        cure = "Use 1000 at the very least; 100000 catches a bias of about 0.02."
        raise InputError(explain("Too few samples to say anything.", samples, cure))
    chosen = [*standard_cases(seed), *edge_cases(seed)] if cases is None else list(cases)
    is_rule = isinstance(subject, str) or hasattr(subject, "decide")
    if is_rule:
        rule = rules.get(subject)  # type: ignore[arg-type]
        if draw is not None:
            cure = "Pass your own verifier function together with draw."
            raise InputError(
                explain("A rule is certified with its own way of drawing.", draw, cure)
            )
        if cases is None and rule.judges_trees:
            chosen += tree_cases(seed)
        return _of_rule(rule, name, chosen, addressing, progress or Telling())
    if not callable(subject):
        cure = f"Pass a rule or its name ({', '.join(rules.names())}), or a function."
        raise InputError(explain("That verifies nothing.", type(subject).__name__, cure))
    if addressing is not by_round:
        wrong, cure = "A function is handed its numbers.", "Pass a rule together with addressing."
        raise InputError(explain(wrong, f"addressing={addressing}", cure))
    label = name or str(getattr(subject, "__name__", "function"))
    code, called = _round_of(subject, label, draw, chosen)
    return _OfFunction(code, label, called, chosen, seed, samples, progress).certificate(method)


def _of_rule(
    rule: Rule, name: str | None, cases: Sequence[Case], addressing: Addressing, tell: Progress
) -> Certificate:
    """Certify a rule in every case, with each way of drawing that the case has.

    Rules use randomness only through the noise object, so all outcomes can be listed.
    """
    findings = []
    for done, case in enumerate(cases):
        tell(case.name, done, len(cases))
        findings += [_rule_finding(rule, case, way, addressing) for way in case.ways]
    _ended(tell)
    return Certificate(name or rule.name, tuple(findings), scope=_scope(cases))


def _rule_finding(rule: Rule, case: Case, way: str, addressing: Addressing) -> Finding:
    """Test one case by following every outcome.

    way: how the draft is drawn. A random number that is used twice is noted with its address,
    whether or not it causes a bias.
    """
    step = rule_step(rule, case.target, case.draft, way, addressing)
    found = bias(joint(step, case.vocab_size, case.length, case.draft_length), case)
    label = case.name if way == "sampled" else f"{case.name}, {LABELS[way]}"
    note = f"address met twice: {min(step.reused)}" if step.reused else ""
    return Finding(label, "exact", found, EXACT_LIMIT, EXACT_LIMIT, 1.0, note=note)


def _round_of(
    subject: Any, label: str, draw: Drawer | None, cases: Sequence[Case]
) -> tuple[Round, str]:
    """The subject as a round that can be run in a case, and how it is called if that is unusual."""
    loop, called = as_loop(subject)
    if loop is not None:
        return loop, called
    function, called = as_verifier(subject)
    if not called:
        has_trees = any(isinstance(shape_of(case), Tree) for case in cases)
        check_call(function, label, num_arguments=5 if has_trees else 4)
    return Verifying(function, draw or draw_plainly), called


class _OfFunction:
    """Certifies a user's function: exactly if its outcomes can be listed, else by sampling.

    Outcomes are followed for 40 seconds in all. The remaining cases are sampled, unless a fault was
    found already, and the certificate says why they could not be followed.
    """

    def __init__(
        self,
        code: Round,
        label: str,
        called: str,
        cases: list[Case],
        seed: int,
        samples: int | None,
        progress: Progress | None,
    ) -> None:
        """called: how the code is called, if that is unusual. samples: texts per case; None for as
        many as take 15 seconds."""
        self.code, self.label, self.called = code, label, called
        self.cases, self.seed, self.samples = cases, seed, samples
        self.tell = progress or Telling()
        self.reasons: dict[str, str] = {}  # by case, why its outcomes could not be listed
        self.raised: set[str] = set()  # cases in which it raised an exception of its own

    def certificate(self, method: str) -> Certificate:
        """Follow the cases that can be followed; if these show no fault, sample the others."""
        with failing(self.label, self.cases[0].name, self.called):
            # it runs at all; torch is imported by now
            sampled_finding(self.code, self.cases[0], 1, self.seed, range(1))
        found: dict[str, Finding] = {}
        rounding = ""
        if method != "sampled":
            following = Following(self.code, EXACT_SECONDS if method == "auto" else math.inf)
            found = self._followed(following)
            if self.reasons and method == "exact":
                cure = "Use method='sampled', or draw with rng.random() and rng.choice()."
                wrong = "The function's outcomes cannot be listed."
                raise InputError(explain(wrong, self._reason, cure))
            rounding = self._rounding(following, found)
        left = [case for case in self.cases if case.name not in found]
        if left and all(finding.passed for finding in found.values()):
            some = [case for case in left if case.sampled or case.name in self.raised]
            found |= self._sampled(some or left)
        tried = [case for case in self.cases if case.name in found]
        findings = tuple(found[case.name] for case in tried)
        return Certificate(self.label, findings, self._reason, _scope(tried), self.called, rounding)

    @property
    def _reason(self) -> str:
        """The reason why the first case could not be followed; empty if all cases could be."""
        return next(iter(self.reasons.values()), "")

    def _followed(self, following: Following) -> dict[str, Finding]:
        """The findings of the cases whose outcomes could be listed."""
        found: dict[str, Finding] = {}
        for done, case in enumerate(self.cases):
            self.tell(case.name, done, len(self.cases))
            try:
                found[case.name] = following.finding(case)
            except ForerunError:
                raise
            except CannotEnumerate as error:
                self.reasons[case.name] = f"use of {error}"
            except Exception as error:  # code that fails for another reason fails when sampled too
                self.reasons[case.name] = f"{type(error).__name__}: {error}"
                self.raised.add(case.name)
        _ended(self.tell)
        if following.elsewhere.was_asked and found and not self._is_as_followed(found):
            self.reasons = dict.fromkeys(found, "its real random numbers have another law")
            return {}
        return found

    def _is_as_followed(self, found: dict[str, Finding]) -> bool:
        """Whether sampled texts of the first case agree with the law found by following."""
        case = next(case for case in self.cases if case.name in found)
        real = sampled_finding(self.code, case, CHECKED, self.seed, range(CHECKED))
        return real.passed or not found[case.name].passed

    def _rounding(self, following: Following, found: dict[str, Finding]) -> str:
        """Widen the findings' limits for the precision of the code's numbers. Returns the name of
        the number format."""
        for case in self.cases:
            if case.name in found:
                found[case.name] = rounded(found[case.name], case.length, following.precision)
        return format_of(following.precision) if found else ""

    def _sampled(self, cases: list[Case]) -> dict[str, Finding]:
        """The findings of cases tested by sampling, with the requested number of texts or 15
        seconds' worth."""
        with failing(self.label, cases[0].name, self.called):
            foreseen = budgets(self.code, cases, self.seed)
        samples = self.samples or affordable(foreseen).samples
        if self.reasons and isinstance(self.tell, Telling):
            said = "; ".join(map(str, foreseen))
            self.tell.begin(
                f"certify: the outcomes of {self.label} cannot be listed ({self._reason}), so "
                f"{samples:,} texts are sampled for each of {len(cases)} cases. Of texts per case "
                f"and bias, {said}; choose by samples=N or --samples N"
            )
        found = {}
        for number, case in enumerate(cases):
            turns = self._turns(case, number * samples, samples, samples * len(cases))
            with failing(self.label, case.name, self.called):
                found[case.name] = sampled_finding(self.code, case, samples, self.seed, turns)
        _ended(self.tell)
        return found

    def _turns(self, case: Case, before: int, samples: int, total: int) -> Iterator[int]:
        """Yield the sample numbers of a case, reporting progress now and then."""
        for done in range(samples):
            if done % TOLD_EVERY == 0:
                self.tell(case.name, before + done, total)
            yield done


def _ended(tell: Progress) -> None:
    """Erase the progress line, if one was printed."""
    if isinstance(tell, Telling):
        tell.end()


def _scope(cases: Sequence[Case]) -> str:
    """A description of what the cases cover."""
    drafts = _spans({length for case in cases for length in draft_lengths(case)})
    sizes = _spans({case.vocab_size for case in cases})
    words = "vocabularies" if " " in sizes else "a vocabulary"
    return f"drafts of {drafts} tokens, {words} of {sizes}"


def _spans(numbers: set[int]) -> str:
    """A set of whole numbers in words: "2 to 4 and 33"."""
    firsts = sorted(number for number in numbers if number - 1 not in numbers)
    lasts = sorted(number for number in numbers if number + 1 not in numbers)
    spans = [
        f"{first} to {last}" if first < last else f"{first}"
        for first, last in zip(firsts, lasts, strict=True)
    ]
    return " and ".join([", ".join(spans[:-1]), spans[-1]] if len(spans) > 1 else spans)


def check_call(function: Callable[..., Any], name: str, *, num_arguments: int) -> None:
    """Raise if a function does not accept this number of arguments."""
    try:
        taken = signature(function)
    except (ValueError, TypeError):  # a builtin that does not say
        return
    try:
        taken.bind(*range(num_arguments))
    except TypeError as error:
        wrong = f"The function does not take {num_arguments} arguments."
        raise InputError(explain(wrong, f"{name}{taken}", f"It is called as {HOW}.")) from error


@contextmanager
def failing(name: str, case: str, called: str) -> Iterator[None]:
    """Add to an exception raised by the tested code its line, the name of the case, and how it is
    called if that is unusual."""
    try:
        yield
    except ForerunError:
        raise
    except Exception as error:
        wrong = f"The function fails in the case {case!r}."
        cure = f"It is called as {called or HOW}. Drafts may be empty."
        if called.endswith("as in the exercise"):
            cure = f"It is called as {called}."
        received = f"{name}: {type(error).__name__}: {error}{_line_of(error)}"
        raise InputError(explain(wrong, received, cure)) from error


def _line_of(error: Exception) -> str:
    """The innermost line of a user's own code that an exception passed; empty if there is none."""
    for frame in reversed(extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if "site-packages" not in path.parts and OURS not in path.parents and path.is_file():
            return f" ({path.name}, line {frame.lineno})"
    return ""


def doubt(rule: Rule) -> None:
    """Warn if a rule that claims to be lossless is not; each rule is tested once."""
    decide = type(rule).decide
    code = getattr(decide, "__code__", decide)
    key = type(rule).__qualname__, code, repr(rule)
    if not rule.lossless or key in _judged:
        return
    _judged.add(key)
    every = [*standard_cases(), *edge_cases(), *(tree_cases() if rule.judges_trees else ())]
    cases = [case for case in every if case.name in QUICK]
    try:
        found = certify(rule, cases=cases, progress=silent)
    except Exception:  # its use will raise the right error
        return
    if not found.lossless:
        warn(
            f"The rule {rule.name!r} says lossless=True and is not: a bias of {found.bias:.2g} in "
            f"the case {found.worst.case!r}. fr.certify(rule) shows all cases; a lossy rule says "
            "lossless=False."
        )


# --- progress -----------------------------------------------------------------------------------


def silent(case: str, done: int, total: int) -> None:
    """A progress callback that shows nothing."""


class Telling:
    """Prints progress now and then, with the time left."""

    def __init__(self) -> None:
        """Start to count time."""
        self._start = now()
        self._next = self._start + FIRST
        self._width = 0  # of the line that is shown

    def begin(self, text: str) -> None:
        """Print that a new stage begins, and measure time from here."""
        self.end()
        print(text, file=sys.stderr, flush=True)
        self._start = now()
        self._next = self._start + FIRST

    def __call__(self, case: str, done: int, total: int) -> None:
        """Print the progress if the last line is old enough."""
        moment = now()
        if moment < self._next or not done or not sys.stderr.isatty():
            return
        left = (moment - self._start) / done * (total - done)
        line = f"certify: {done:,} of {total:,} ({case}), about {_duration(left)} left"
        self._next = moment + REFRESH
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(line))

    def end(self) -> None:
        """Erase the progress line."""
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


def _duration(seconds: float) -> str:
    """A number of seconds in words."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
