"""The exact law of what a rule emits, with the coins integrated out of the production code.

Models here are functions from a prefix (a tuple of tokens) to a row of probabilities (V,), so a
law is a joint one over several tokens and several rounds, each token seeing those before it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun import rules
from forerun.branches import BranchingNoise, Path, every_path
from forerun.errors import InputError, explain
from forerun.rules.base import Rule
from forerun.types import Draft
from forerun.verification import prepare

Prefix = tuple[int, ...]
Model = Callable[[Prefix], np.ndarray[Any, Any]]
"""The next token's probabilities (V,) after a prefix."""
Emission = Mapping[Prefix, float]
"""The tokens a round emits, and how likely."""
Step = Callable[[Prefix, int], Emission]
"""The law of one round's emission after a prefix, with so many draft tokens."""
Lengths = int | Callable[[Prefix], int]
"""K, fixed or as a function of what has been emitted."""


def law(
    rule: str | Rule,
    target: Model | np.ndarray[Any, Any],
    draft: Model | np.ndarray[Any, Any],
    *,
    draft_length: Lengths | None = None,
    length: int | None = None,
    drawn: str = "sampled",
) -> np.ndarray[Any, Any]:
    """The joint law of the first `length` tokens that rounds under `rule` emit, (V,) * length.

    target, draft: models, or arrays (N, V) of one row per position (a draft of (K, V) sets K).
    drawn: "sampled" from the draft's law, or "point" for its argmax.
    """
    if draft_length is None:
        if callable(draft):
            cure = "Pass draft_length=K."
            raise InputError(explain("K is not known.", "a draft model", cure))
        draft_length = len(draft)
    target, draft = as_model(target, "target"), as_model(draft, "draft")
    if length is None:
        longest = draft_length(()) if callable(draft_length) else draft_length
        length = longest + 1
    step = rule_step(rule, target, draft, drawn)
    return joint(step, len(target(())), length, draft_length)


def target_law(target: Model | np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """The joint law of `length` tokens sampled plainly from the target, (V,) * length."""
    model = as_model(target, "target")
    plain: Step = lambda prefix, _: {  # noqa: E731
        (token,): chance for token, chance in enumerate(model(prefix))
    }
    return joint(plain, len(model(())), length, 0)


def expected_accepted(
    rule: str | Rule,
    target: Model | np.ndarray[Any, Any],
    draft: Model | np.ndarray[Any, Any],
    draft_length: int,
) -> float:
    """The mean number of draft tokens that one round keeps."""
    step = rule_step(rule, as_model(target, "target"), as_model(draft, "draft"), "sampled")
    return sum(chance * (len(emitted) - 1) for emitted, chance in step((), draft_length).items())


def rule_step(rule: str | Rule, target: Model, draft: Model, drawn: str) -> Step:
    """One round of a rule: every draft is a row, every outcome of the noise a path."""
    chosen = rules.get(rule)
    if drawn not in ("sampled", "point"):
        cure = "Use 'sampled' or 'point'."
        raise InputError(explain("drawn is not known.", repr(drawn), cure))

    def step(prefix: Prefix, draft_length: int) -> Emission:
        drafts, chances = every_draft(draft, prefix, draft_length, drawn)
        tokens = np.array(drafts, dtype=np.int64).reshape(len(drafts), draft_length)
        target_rows = np.array([path_rows(target, prefix, x, draft_length + 1) for x in drafts])
        made = Draft.point(tokens)
        if drawn == "sampled" and draft_length:
            rows = [path_rows(draft, prefix, x, draft_length) for x in drafts]
            made = Draft.sampled(tokens, np.array(rows))
        trial = prepare(made, target_rows, None, 1.0, chosen)

        def run(path: Path) -> tuple[Any, Any, Any]:
            noise = BranchingNoise(path, len(drafts))
            num_accepted, extra = chosen.decide(trial, noise)
            return num_accepted, extra, noise.weights * chances

        emitted: dict[Prefix, float] = defaultdict(float)
        for num_accepted, extra, weights in every_path(run):
            for row in np.nonzero(weights)[0]:
                kept = drafts[row][: num_accepted[row]]
                emitted[(*kept, int(extra[row]))] += weights[row]
        return emitted

    return step


def every_draft(
    draft: Model, prefix: Prefix, draft_length: int, drawn: str
) -> tuple[list[Prefix], np.ndarray[Any, Any]]:
    """All drafts that can occur, and the chance of each."""
    if drawn == "point":
        tokens: Prefix = ()
        for _ in range(draft_length):
            tokens = (*tokens, int(np.argmax(draft(prefix + tokens))))
        return [tokens], np.ones(1)
    size = len(draft(prefix))
    drafts = list(itertools.product(range(size), repeat=draft_length))
    chances = [
        float(np.prod([draft(prefix + x[:i])[x[i]] for i in range(draft_length)])) for x in drafts
    ]
    possible = [index for index, chance in enumerate(chances) if chance > 0]
    return [drafts[i] for i in possible], np.array([chances[i] for i in possible])


def path_rows(model: Model, prefix: Prefix, tokens: Prefix, num_rows: int) -> Any:
    """The model's rows along a draft, (num_rows, V)."""
    return np.array([model(prefix + tokens[:i]) for i in range(num_rows)])


def joint(step: Step, vocab_size: int, length: int, draft_length: Lengths) -> np.ndarray[Any, Any]:
    """Repeat rounds until `length` tokens are out; the law of those, (V,) * length."""
    known: dict[Prefix, np.ndarray[Any, Any]] = {}

    def after(prefix: Prefix) -> np.ndarray[Any, Any]:
        left = length - len(prefix)
        if left == 0:
            return np.ones(())
        if prefix not in known:
            total = np.zeros((vocab_size,) * left)
            count = draft_length(prefix) if callable(draft_length) else draft_length
            for emitted, chance in step(prefix, count).items():
                kept = emitted[:left]
                total[kept] += chance * after(prefix + kept)
            known[prefix] = total
        return known[prefix]

    return after(())


def as_model(rows: Model | np.ndarray[Any, Any], name: str) -> Model:
    """A model as it is; an array (N, V) as the model that reads its rows by position."""
    if callable(rows):
        return rows
    table = np.asarray(rows, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not compat.is_numpy_array(table):
        cure = "Pass (N, V): one row of probabilities per position."
        raise InputError(explain(f"{name} rows have a wrong shape.", table.shape, cure))
    return lambda prefix: table[min(len(prefix), len(table) - 1)]
