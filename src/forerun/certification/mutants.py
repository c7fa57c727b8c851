"""Verifiers wrong in ways that have really shipped, kept so that `certify` must reject them.

Each is written as an ordinary NumPy function.  What most of them share with the correct rule is
`_walk`, the left-to-right loop; a mutant changes one thing in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.certification.certify import Drawer, Verifier, draw_plainly
from forerun.law import Model

Row = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mutant:
    """A wrong verifier, or a wrong way of drawing, and what is wrong with it."""

    name: str
    story: str
    verify: Verifier
    draw: Drawer = draw_plainly


def _sample(rng: Any, weights: Row) -> int:
    total = weights.sum()
    return int(rng.choice(len(weights), p=weights / total))


def _owed(target: Row, draft: Row) -> Row:
    """(p - q)+, or p where nothing is left of it."""
    part = np.maximum(target - draft, 0.0)
    return part if part.sum() > 1e-12 else target


def _walk(
    tokens: Any,
    draft: Any,
    target: Any,
    rng: Any,
    chance: Callable[[Row, Row, int], float] = lambda p, q, x: p[x] / q[x],
    correction: Callable[[Row, Row], Row] = _owed,
    bonus_row: int = -1,
) -> list[int]:
    """The correct `ratio` rule, with each of its parts open to replacement."""
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if rng.random() < chance(target[slot], draft[slot], token):
            kept.append(token)
        else:
            return [*kept, _sample(rng, correction(target[slot], draft[slot]))]
    return [*kept, _sample(rng, target[bonus_row])]


def _sharpened(row: Row, power: float) -> Row:
    weights = row**power
    return np.asarray(weights / weights.sum())


def _draw_from(change: Callable[[Row], Row]) -> Drawer:
    """Draw from a changed law, report the unchanged one."""

    def draw(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
        tokens: list[int] = []
        for _ in range(draft_length):
            tokens.append(_sample(rng, change(model(tuple(tokens)))))
        rows = [model(tuple(tokens[:slot])) for slot in range(draft_length)]
        return tokens, np.array(rows)

    return draw


def _draw_confident(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
    """Throw a sampled token away, and stop, when its own probability is low."""
    tokens, rows = draw_plainly(model, draft_length, rng)
    for slot, token in enumerate(tokens):
        if rows[slot][token] < 0.3:
            return tokens[:slot], rows[:slot]
    return tokens, rows


def _draw_one_row(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
    """All K tokens from the law of the first position, without replacement."""
    row = model(())
    weights, tokens = row.copy(), list[int]()
    for _ in range(draft_length):
        if weights.sum() <= 0:
            weights = row.copy()
        tokens.append(_sample(rng, weights))
        weights[tokens[-1]] = 0.0
    return tokens, np.array([row] * draft_length)


def _from_argmax(row: Row) -> Row:
    return np.asarray(np.eye(len(row))[int(np.argmax(row))])


def _from_few_bits(row: Row) -> Row:
    """A law stored with three bits of mantissa, as a coarser stand-in for bfloat16."""
    mantissa, exponent = np.frexp(row)
    return _sharpened(np.ldexp(np.round(mantissa * 8) / 8, exponent), 1.0)


def _bare_target(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    return _walk(tokens, draft, target, rng, lambda p, q, x: p[x], lambda p, q: p)


def _first_unchecked(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    if not len(tokens):
        return _walk(tokens, draft, target, rng)
    return [int(tokens[0]), *_walk(tokens[1:], draft[1:], target[1:], rng)]


def _off_by_one(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    return _walk(tokens, draft, np.concatenate([target[1:], target[-1:]]), rng)


def _stale_rows(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    return _walk(tokens, draft, np.repeat(target[:1], len(target), axis=0), rng)


def _one_coin(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    coin = rng.random()
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if not coin < target[slot][token] / draft[slot][token]:
            return [*kept, _sample(rng, _owed(target[slot], draft[slot]))]
        kept.append(token)
    return [*kept, _sample(rng, target[-1])]


def _argmax_correction(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    return _walk(tokens, draft, target, rng, correction=lambda p, q: _from_argmax(_owed(p, q)))


def _redraw_on_mismatch(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if _sample(rng, target[slot]) != token:
            return [*kept, _sample(rng, target[slot])]
        kept.append(token)
    return [*kept, _sample(rng, target[-1])]


def _padded_vocabulary(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    pad = np.full((len(target), 1), 0.05)
    return _walk(
        tokens, np.pad(draft, ((0, 0), (0, 1))), np.concatenate([target, pad], axis=1), rng
    )


def _top_children_as_sampled(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    if not len(tokens):
        return _walk(tokens, draft, target, rng)
    owed, law = target[0], draft[0]
    for child in np.argsort(-law, kind="stable")[:2]:
        if law[child] > 0 and rng.random() < owed[child] / law[child]:
            return [int(child)]
        part = _owed(owed, law)
        owed = part / part.sum()
    return [_sample(rng, owed)]


def _coarse_exponentials(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Sample and match by a race whose noise has 2 bits and can be exactly 0."""
    weights = target[0]
    noise = np.array([-np.log1p(-rng.integers(4) / 4) for _ in weights])
    times = np.where(weights > 0, noise / np.where(weights > 0, weights, 1.0), np.inf)
    return [int(np.argmin(times))]


def _block(
    tokens: Any,
    draft: Any,
    target: Any,
    rng: Any,
    *,
    stop_at_failure: bool = False,
    token_residual: bool = False,
    survival: Callable[[float, float, float], float] = lambda pi, p, q: min(pi * p / q, 1.0),
    point: bool = False,
    whole: bool = False,
) -> list[int]:
    """Block verification as it is usually written, left to right, with its usual mistakes."""
    num_slots = len(tokens)
    pi, best, kept = 1.0, 1.0, 0
    product = 1.0
    for slot, token in enumerate(tokens):
        chance_q = 1.0 if point else draft[slot][token]
        pi = survival(pi, target[slot][token], chance_q)
        product *= target[slot][token] / chance_q
        used = min(1.0, product) if whole else pi
        if slot + 1 == num_slots:
            bar = used
        else:
            missing = np.maximum(used * target[slot + 1] - draft[slot + 1], 0.0).sum()
            bar = missing / (missing + 1 - used) if missing + 1 - used > 0 else 1.0
        if rng.random() < bar:
            kept, best = slot + 1, used
        elif stop_at_failure:
            break
    if kept == num_slots:
        return [*map(int, tokens), _sample(rng, target[-1])]
    scale = 1.0 if token_residual else best
    row = np.maximum(scale * target[kept] - draft[kept], 0.0)
    return [*map(int, tokens[:kept]), _sample(rng, row if row.sum() > 1e-12 else target[kept])]


class _SharedUniform:
    """The number that drew a draft token decides its acceptance too."""

    def __init__(self) -> None:
        self.numbers: list[Any] = []

    def draw(self, model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
        self.numbers = []
        tokens: list[int] = []
        for _ in range(draft_length):
            number = rng.random()
            row = model(tuple(tokens))
            edges = np.cumsum(row)[:-1]
            tokens.append(next((i for i, edge in enumerate(edges) if number < edge), len(edges)))
            self.numbers.append(number)
        rows = [model(tuple(tokens[:slot])) for slot in range(draft_length)]
        return tokens, np.array(rows)

    def verify(self, tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        kept: list[int] = []
        for slot, token in enumerate(tokens):
            if not self.numbers[slot] < target[slot][token] / draft[slot][token]:
                return [*kept, _sample(rng, _owed(target[slot], draft[slot]))]
            kept.append(token)
        return [*kept, _sample(rng, target[-1])]


_shared = _SharedUniform()

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "wrong q",
        "drawn at a lower temperature than the law that is reported",
        _walk,
        _draw_from(lambda row: _sharpened(row, 1.5)),
    ),
    Mutant(
        "truncated q",
        "drawn after top-2, reported before it",
        _walk,
        _draw_from(lambda row: _sharpened(np.where(row >= np.sort(row)[-2], row, 0.0), 1.0)),
    ),
    Mutant(
        "argmax as sampled",
        "the likeliest token, verified as if it had been sampled",
        _walk,
        _draw_from(_from_argmax),
    ),
    Mutant(
        "top-2 as sampled",
        "deterministic children of a node, verified as if sampled",
        _top_children_as_sampled,
    ),
    Mutant(
        "residual is p",
        "after a refusal the token comes from p, not (p - q)+",
        lambda x, q, p, rng: _walk(x, q, p, rng, correction=lambda a, b: a),
    ),
    Mutant(
        "residual is |p - q|",
        "the residual is not clipped at zero",
        lambda x, q, p, rng: _walk(x, q, p, rng, correction=lambda a, b: np.abs(a - b) + 1e-300),
    ),
    Mutant(
        "shared uniform",
        "one number both draws the draft token and accepts it",
        _shared.verify,
        _shared.draw,
    ),
    Mutant("one coin", "a reseeded generator: every slot sees the same coin", _one_coin),
    Mutant(
        "drops the unsure",
        "sampled tokens of low probability are discarded unverified",
        _walk,
        _draw_confident,
    ),
    Mutant(
        "block, stops early",
        "block verification that ends at the first failed coin",
        lambda x, q, p, rng: _block(x, q, p, rng, stop_at_failure=True),
    ),
    Mutant(
        "block, token residual",
        "block thresholds with the residual of the ratio rule",
        lambda x, q, p, rng: _block(x, q, p, rng, token_residual=True),
    ),
    Mutant(
        "block, q = 1",
        "block thresholds with q = 1 for a draft that has a law",
        lambda x, q, p, rng: _block(x, q, p, rng, point=True),
    ),
    Mutant(
        "block, whole product",
        "block thresholds from min(1, P / Q) of the whole prefix",
        lambda x, q, p, rng: _block(x, q, p, rng, whole=True),
    ),
    Mutant(
        "coin is 0",
        "the coin is hard-wired to 0: nothing is ever refused",
        lambda x, q, p, rng: _walk(x, q, p, rng, lambda a, b, t: 1.0),
    ),
    Mutant(
        "coarse noise",
        "race noise of a few bits that can be exactly 0",
        _coarse_exponentials,
        _draw_from(_from_argmax),
    ),
    Mutant(
        "coarse q",
        "drawn from a law in low precision, verified in high",
        _walk,
        _draw_from(_from_few_bits),
    ),
    Mutant(
        "stale rows", "every slot judged by the law before the draft (stale history)", _stale_rows
    ),
    Mutant("off by one", "slot i judged by the target's row i + 1", _off_by_one),
    Mutant("first unchecked", "the first draft token is committed unverified", _first_unchecked),
    Mutant(
        "divides by max p",
        "accepts with p(x) / max p instead of p(x) / q(x)",
        lambda x, q, p, rng: _walk(x, q, p, rng, lambda a, b, t: a[t] / a.max()),
    ),
    Mutant(
        "argmax correction",
        "the residual's likeliest token instead of a sample",
        _argmax_correction,
    ),
    Mutant(
        "redraws on mismatch",
        "sample-and-match that draws again after a mismatch",
        _redraw_on_mismatch,
    ),
    Mutant("padded vocabulary", "padding columns keep probability", _padded_vocabulary),
    Mutant(
        "bonus from the last slot",
        "the bonus token uses the row before the last draft token",
        lambda x, q, p, rng: _walk(x, q, p, rng, bonus_row=-2 if len(x) else -1),
    ),
    Mutant("bare target probability", "accepts with p(x), resamples from p", _bare_target),
    Mutant(
        "drafts from one row",
        "K tokens without replacement from one position",
        _walk,
        _draw_one_row,
    ),
)
"""Every mutant; `certify` must reject each."""
