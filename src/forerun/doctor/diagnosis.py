"""Explains why two outputs that should be equal differ: float arithmetic, or a bug.

A pass over five tokens multiplies matrices of another shape than a pass over one, so its logits
differ in the last bits; where two tokens are nearly tied, that decides. The doctor finds the first
difference and computes the logits at that position with all kinds of pass that speculation uses. If
one of them differs from a fresh pass (without a cache) by more than rounding explains, there is a
bug. If none does, the doctor compares how far the passes differ with how small a change of the
logits swaps the two choices.

Rounding to 16 bits moves logits as far as some bugs do. So a difference that only 16 bits explain
is called unclear: it must be repeated in float32, where bugs stay as large and rounding does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from forerun.base.arrays import HostArray, numpy_namespace, to_numpy
from forerun.doctor.rounding import Rounding, distance, exact_row, rounding
from forerun.engine.answer_options import GREEDY, AnswerOptions
from forerun.engine.request import Request
from forerun.generation.intake import make_request
from forerun.generation.prompts import encode
from forerun.loading.load import wrap
from forerun.models.base import LanguageModel
from forerun.noise.race import race, seed_key
from forerun.sampling.options import Sampling

DRAFT_LENGTHS = (0, 1, 3, 5, 8, 16)
DEEP = 4  # tokens of the text that a draft brings along
ROUNDS = 6  # of drafts that are partly refused
KEPT, REFUSED = 3, 2  # tokens of such a draft


class Suspect(NamedTuple):
    """The logits (V,) after the text from one kind of pass, with the name of the pass."""

    name: str
    logits: HostArray


def fresh_row(model: LanguageModel, text: Sequence[int]) -> Any:
    """The logits (V,) after the text, fed alone in one pass: without a cache if the model supports
    that (`fresh`), else into new rows."""
    if hasattr(model, "fresh"):
        return model.fresh(text)
    return model.score(model.start(1, len(text)), [0], [text], [1])[0, 0]


def suspects(model: LanguageModel, text: Sequence[int], following: list[int]) -> Iterator[Suspect]:
    """Run the kinds of pass that speculation makes, all over one text; all should agree with a
    fresh pass.

    The position may be the first of a draft or deep inside one, in a tree, in a pass shared with
    another text, or after rounds whose drafts were refused; each could have a bug of its own.
    following: tokens to draft after the text, which must not matter.
    """
    text = list(text)
    state = model.start(1, len(text) + max(DRAFT_LENGTHS))
    yield Suspect("the pass over the whole text", _read(model.score(state, [0], [text], [1]), 0))
    if len(text) > 1:
        model.commit(state, [0], [len(text) - 1])
    longest = (following + text * max(DRAFT_LENGTHS))[: max(DRAFT_LENGTHS)]
    if model.max_context is not None:
        longest = longest[: max(0, model.max_context - len(text))]
    drafts = [longest[:count] for count in DRAFT_LENGTHS]
    for draft in drafts:
        pending = text[state.lengths[0] :]
        logits = model.score(state, [0], [[*pending, *draft]], [len(draft) + 1])
        yield Suspect(_pass_of(len(draft)), _read(logits, 0))
        model.commit(state, [0], [0])
    yield from _deep(model, text, drafts[3])
    if getattr(model, "scores_trees", False) and len(drafts[2]) == 3:
        yield _in_tree(model, text, drafts[2])
    yield _shared(model, text, drafts[3])
    yield _after_refusals(model, text, drafts[2])


def _deep(model: LanguageModel, text: list[int], draft: list[int]) -> Iterator[Suspect]:
    """Passes in which the last tokens of the text are correct guesses, with and without a draft
    after them."""
    deep = min(DEEP, len(text) - 1)
    state = _stored(model, text[: len(text) - deep], 1, len(text) + len(draft))
    for rest in ([], draft):
        count = deep + len(rest)
        feed = [*text[state.lengths[0] :], *rest]
        logits = model.score(state, [0], [feed], [count + 1])
        yield Suspect(f"{_pass_of(count)}, {deep} of them right,", _read(logits, deep))
        model.commit(state, [0], [0])


def _in_tree(model: LanguageModel, text: list[int], draft: list[int]) -> Suspect:
    """A pass in which the last token of the text is a tree node with an earlier sibling and
    children."""
    stem = text[:-1] or text
    state = _stored(model, stem, 1, len(text) + len(draft) + 2)
    nodes, parents = [draft[0], text[-1], draft[1], draft[2]], [-1, -1, 1, 1]
    place = 2
    if stem == text:  # a text of one token is no draft
        nodes, parents, place = draft, [-1, -1, 0], 0
    feed = [*stem[state.lengths[0] :], *nodes]
    logits = model.score(state, [0], [feed], [len(nodes) + 1], [parents])
    return Suspect(f"the pass of a tree of {len(nodes)} draft tokens", _read(logits, place))


def _shared(model: LanguageModel, text: list[int], draft: list[int]) -> Suspect:
    """A pass shared with a row of another length that drafts fewer tokens."""
    state = _stored(model, text, 2, len(text) + len(draft))
    other = text[: max(1, len(text) // 2)]
    feeds = [[*text[state.lengths[0] :], *draft], other]
    logits = model.score(state, [0, 1], feeds, [len(draft) + 1, 1])
    return Suspect(f"{_pass_of(len(draft))} beside another text", _read(logits, 0))


def _after_refusals(model: LanguageModel, text: list[int], wrong: list[int]) -> Suspect:
    """A pass after rounds in which some guesses were kept and some refused."""
    known = max(1, len(text) - KEPT * ROUNDS)
    state = _stored(model, text[:known], 1, len(text) + REFUSED)
    refused = wrong[:REFUSED]
    while known < len(text):
        known = min(known + KEPT, len(text))
        pending = text[state.lengths[0] : known]
        model.score(state, [0], [[*pending, *refused]], [len(refused) + 1])
        model.commit(state, [0], [min(len(pending), len(text) - 1 - state.lengths[0])])
    logits = model.score(state, [0], [text[state.lengths[0] :]], [1])
    return Suspect("the pass after rounds of refused drafts", _read(logits, 0))


def _stored(model: LanguageModel, text: list[int], num_rows: int, capacity: int) -> Any:
    """Make new rows; the first one stores all of the text except its last token, as between two
    rounds."""
    state = model.start(num_rows, capacity)
    if len(text) > 1:
        model.score(state, [0], [text[:-1]], [1])
        model.commit(state, [0], [len(text) - 1])
    return state


def _read(logits: Any, place: int) -> HostArray:
    """The logits (V,) of the first row at one place."""
    row: HostArray = to_numpy(logits)[0, place].astype(np.float64)
    return row


def _pass_of(count: int) -> str:
    """The name of a pass with this number of draft tokens."""
    return f"the pass of {count} draft token{'' if count == 1 else 's'}"


TRIALS, TOGETHER = 64, 8
"""The number of random changes tried for each size, and how many of them are tried in one call."""
EXCUSED = 8.0
"""A tie counts as explained by rounding if it is at most this many times wider than the differences
seen between passes."""


@dataclass(frozen=True)
class Diagnosis:
    """The explanation why two outputs first differ at `index`."""

    index: int  # position in the output
    tokens: tuple[int | None, int | None]
    gap: float  # how large a change of the logits turns one choice into the other
    float_noise: float  # how far apart the logits of equal texts are between passes
    reproduced: bool  # whether passes of different shape really chose both tokens
    worst_pass: str  # the one furthest from a fresh pass
    error: float  # how far that is, in logits
    rounding: Rounding  # how far float arithmetic could have brought it
    is_tie_in_float32: bool = True  # whether float32's rounding, too, turns one into the other
    in_float32: Diagnosis | None = None  # of the same outputs, by the model in float32

    @property
    def is_explained(self) -> bool:
        """Whether float arithmetic explains the differences between passes."""
        return self.error <= self.rounding.bound

    @property
    def is_bug(self) -> bool:
        """Whether rounding does not explain the difference, or no longer explains it in float32."""
        repeated = self.in_float32
        return not self._could_be_rounding or (repeated is not None and not repeated.is_explained)

    @property
    def is_unclear(self) -> bool:
        """Whether only rounding to 16 bits explains the difference, and it was not repeated in
        float32."""
        only_coarse = self.rounding.is_coarse and not self.is_tie_in_float32
        return self._could_be_rounding and only_coarse and self.in_float32 is None

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding explains the difference, so that it is neither a bug nor unclear."""
        return not (self.is_bug or self.is_unclear)

    @property
    def _could_be_rounding(self) -> bool:
        """Whether rounding in the model's own dtype explains the difference."""
        explained = min(EXCUSED * self.float_noise, 2 * self.rounding.bound)
        return self.is_explained and (self.reproduced or self.gap <= explained)

    def __str__(self) -> str:
        """The diagnosis in words."""
        first, second = self.tokens
        where = f"output token {self.index} ({first} or {second})"
        explains = f"{self.rounding.dtype} explains at most {self.rounding.bound:.1e}"
        if not self.is_explained:
            return (
                f"bug: at {where} {self.worst_pass} differs from a fresh pass by "
                f"{self.error:.1e} logits; {explains}"
            )
        if self.is_unclear:
            return (
                f"cannot tell in {self.rounding.dtype}: repeat in float32. At {where} passes of "
                f"different shape differ by {self.float_noise:.1e} logits, where {explains}; a bug "
                "of that size would look the same"
            )
        if self.in_float32 is not None and self.is_bug:
            return str(self.in_float32)
        if self.is_near_tie:
            shown = ", and both choices were reproduced" if self.reproduced else ""
            if self.in_float32 is not None:
                shown += f"; in float32 they differ by {self.in_float32.float_noise:.1e}"
            return (
                f"near-tie of {self.gap:.1e} logits in float arithmetic at {where}: passes of "
                f"different shape differ by {self.float_noise:.1e}, where {explains}{shown}"
            )
        return (
            f"bug: at {where} the logits would have to change by {self.gap:.1e}, but passes of "
            f"different shape differ by {self.float_noise:.1e} only"
        )


def diagnose(
    target: Any,
    prompt: Any,
    first: Sequence[int],
    second: Sequence[int],
    *,
    sampling: Sampling = GREEDY,
    stop_tokens: Sequence[int] = (),
    other: Any = None,
) -> Diagnosis | None:
    """Compare two outputs of one request, token by token; None if they are equal.

    sampling: the options that made them, including the seed.
    other: the model that made one of the outputs, if the target did not make both: the same weights
    run by other code. Its passes are checked like the target's own.
    """
    model = wrap(target)
    first, second = list(first), list(second)
    if first == second:
        return None
    index = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    tokens = tuple(text[index] if index < len(text) else None for text in (first, second))
    options = AnswerOptions(sampling, max_new_tokens=index + 1, stop_tokens=stop_tokens)
    request = make_request(model, encode(model, prompt), options)
    request.tokens = [*request.prompt, *first[:index]]
    raw, exact = fresh_row(model, request.tokens), exact_row(model, request.tokens)
    fresh = to_numpy(raw if exact is None else exact).astype(np.float64)
    following = [*first[index:], *second[index:]]
    passes = list(suspects(model, request.tokens, following))
    if other is not None:
        whole = next(suspects(wrap(other), request.tokens, following))
        passes.append(Suspect("the other model's pass", whole.logits))
    errors = [distance(fresh, suspect.logits) for suspect in passes]
    worst = int(np.argmax(errors))
    plain = passes[0].logits
    spread = max(distance(plain, suspect.logits) for suspect in passes)
    choices = _choices(request, [suspect.logits for suspect in passes])
    pair = (tokens[0], tokens[1])
    explains = rounding(model, fresh, str(raw.dtype), request.tokens)
    fine = 2 * explains.in_float32
    return Diagnosis(
        index,
        pair,
        gap=_gap(request, plain, pair, max(spread, 1e-12)),
        float_noise=spread,
        reproduced={tokens[0], tokens[1]} <= choices,
        worst_pass=passes[worst].name,
        error=errors[worst],
        rounding=explains,
        is_tie_in_float32=exact is not None and _gap(request, fresh, pair, fine, fine) <= fine,
    )


def _choices(request: Request, logits: Iterable[HostArray]) -> set[int]:
    """The tokens that plain decoding would choose from each of these logits (V,)."""
    laws = np.stack([request.law(row, (), request.processors).weights for row in logits])  # (N, V)
    key = seed_key(numpy_namespace(), [request.seed] * len(laws), None)
    return set(race(numpy_namespace(), laws, key, np.full(len(laws), request.num_output)).tolist())


def _gap(
    request: Request,
    logits: HostArray,
    tokens: tuple[int | None, int | None],
    start: float,
    most: float = 100.0,
) -> float:
    """The smallest size of random changes to the logits, doubling from `start`, with which both
    tokens are chosen."""
    rng = np.random.default_rng(0)
    size = start
    compared = {token for token in tokens if token is not None}
    if len(compared) < 2:
        return float("inf")
    while size <= most:
        seen = _choices(request, [logits])
        for _ in range(TRIALS // TOGETHER):
            seen |= _choices(request, logits + rng.uniform(-size, size, (TOGETHER, len(logits))))
            if compared <= seen:
                return size
        size *= 2
    return float("inf")
