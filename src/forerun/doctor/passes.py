"""The passes that speculation makes, all over one text: they should agree with a fresh one.

The position of interest may be the first of a draft or lie deep inside one, in a tree, in a pass
shared with another text, or behind rounds whose drafts were refused; each is a way to be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from forerun.base.arrays import HostArray, to_numpy
from forerun.models.base import LanguageModel

DRAFT_LENGTHS = (0, 1, 3, 5, 8, 16)
DEEP = 4  # tokens of the text that a draft brings along
ROUNDS = 6  # of drafts that are partly refused
KEPT, REFUSED = 3, 2  # tokens of such a draft


class Suspect(NamedTuple):
    """The logits (V,) after the text, as one pass has them."""

    name: str
    logits: HostArray


def fresh_row(model: LanguageModel, text: Sequence[int]) -> Any:
    """Logits (V,) after the text, fed alone in one pass: without a cache where the model has a
    way to do that (`fresh`), or else into new rows."""
    if hasattr(model, "fresh"):
        return model.fresh(text)
    return model.score(model.start(1, len(text)), [0], [text], [1])[0, 0]


def suspects(model: LanguageModel, text: Sequence[int], following: list[int]) -> Iterator[Suspect]:
    """Passes of all shapes; following: what may come after the text, which must not matter."""
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
    """The last tokens of the text are guesses, right ones, as they once were."""
    deep = min(DEEP, len(text) - 1)
    state = _stored(model, text[: len(text) - deep], 1, len(text) + len(draft))
    for rest in ([], draft):
        count = deep + len(rest)
        feed = [*text[state.lengths[0] :], *rest]
        logits = model.score(state, [0], [feed], [count + 1])
        yield Suspect(f"{_pass_of(count)}, {deep} of them right,", _read(logits, deep))
        model.commit(state, [0], [0])


def _in_tree(model: LanguageModel, text: list[int], draft: list[int]) -> Suspect:
    """The last token of the text is a node with a sibling before it and children behind it."""
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
    """Beside a row of another length that drafts less."""
    state = _stored(model, text, 2, len(text) + len(draft))
    other = text[: max(1, len(text) // 2)]
    feeds = [[*text[state.lengths[0] :], *draft], other]
    logits = model.score(state, [0, 1], feeds, [len(draft) + 1, 1])
    return Suspect(f"{_pass_of(len(draft))} beside another text", _read(logits, 0))


def _after_refusals(model: LanguageModel, text: list[int], wrong: list[int]) -> Suspect:
    """Speculation's way to the text: rounds in which some guesses were kept and some refused."""
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
    """Rows of which the first has read the text but for its last token, as between two rounds."""
    state = model.start(num_rows, capacity)
    if len(text) > 1:
        model.score(state, [0], [text[:-1]], [1])
        model.commit(state, [0], [len(text) - 1])
    return state


def _read(logits: Any, place: int) -> HostArray:
    """The logits (V,) of one place of the first row."""
    row: HostArray = to_numpy(logits)[0, place].astype(np.float64)
    return row


def _pass_of(count: int) -> str:
    """The name of a pass by its number of draft tokens."""
    return f"the pass of {count} draft token{'' if count == 1 else 's'}"
