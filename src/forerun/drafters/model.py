"""Drafts with a second, smaller language model: one pass per draft level for the whole batch.

A chain has one guess per level. Under `match`, the children of a tree node are the tokens that
arrive first in the target's race, and the tree grows along the paths most likely to be accepted.
For rules that need draft probabilities, the drafter fills the given shape and draws the children of
every node with its own noise. Token ids must mean the same in both models, which is checked before
the first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from forerun.base.arrays import HostArray, to_numpy
from forerun.base.errors import InputError, explain
from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.forks import fork, grow_racing, grow_sampled
from forerun.drafters.level_growth import Growth
from forerun.drafters.texts import Texts
from forerun.models.adapter import as_model
from forerun.models.base import LanguageModel, State
from forerun.rules.types import Drawn
from forerun.trees.sibling_laws import Children

COMPARED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The tokenizers of targets and of drafters that were found to agree, with their sizes then.
Comparing 150,000 tokens takes half a second, and every engine asks."""


def check_same_vocabulary(target: LanguageModel, draft: LanguageModel) -> None:
    """Refuse a drafter whose token ids have other meanings; padding of the vocabulary is allowed.

    If both models have tokenizers, every shared id must stand for the same token. Otherwise only
    the sizes can be compared, and may differ by up to 1%.
    """
    target_tokenizer = getattr(target, "tokenizer", None)
    draft_tokenizer = getattr(draft, "tokenizer", None)
    if target_tokenizer is not None and draft_tokenizer is not None:
        sizes = _size(target_tokenizer), _size(draft_tokenizer)
        with suppress(TypeError):  # one of them is not hashable, or allows no weak references
            if COMPARED.get(target_tokenizer, {}).get(draft_tokenizer) == sizes:
                return
        clash = first_clash(target_tokenizer.get_vocab(), draft_tokenizer.get_vocab())
        if clash is None:
            with suppress(TypeError):
                others = COMPARED.setdefault(target_tokenizer, WeakKeyDictionary())
                others[draft_tokenizer] = sizes
            return
        wrong = f"The tokenizers of {target.name} and {draft.name} differ."
        cure = (
            "Use a drafter of the same family, or draft through text: "
            f"forerun.drafters.ThroughText(model), or --drafter through-text:{draft.name}."
        )
        raise InputError(explain(wrong, clash, cure))
    small, large = sorted((target.vocab_size, draft.vocab_size))
    if large > small * 1.01:
        received = f"{target.vocab_size} for {target.name} and {draft.vocab_size} for {draft.name}"
        cure = "Use models that share a tokenizer, or wrap both with theirs so it can be checked."
        raise InputError(explain("The vocabulary sizes differ.", received, cure))


def _size(tokenizer: Any) -> int:
    """The number of a tokenizer's tokens, added ones included; 0 if it does not tell."""
    return len(tokenizer) if hasattr(tokenizer, "__len__") else 0


def first_clash(target: dict[str, int], draft: dict[str, int]) -> str | None:
    """A sentence that says how two vocabularies contradict each other; None if they do not."""
    moved = [token for token, index in target.items() if draft.get(token, index) != index]
    if moved:
        token = min(moved, key=lambda name: target[name])
        return (
            f"{len(moved)} tokens with different ids, for example "
            f"{token!r}: {target[token]} and {draft[token]}"
        )
    names: dict[int, Any] = {index: token for token, index in target.items()}
    renamed = [i for token, i in draft.items() if token not in target and i in names]
    if renamed:
        index = min(renamed)
        other = next(token for token, i in draft.items() if i == index)
        return (
            f"{len(renamed)} ids with different tokens, for example {index}: "
            f"{names[index]!r} and {other!r}"
        )
    return None


@dataclass
class ModelDraftState:
    """The drafting model's rows, and the current draft of each row, by row number."""

    rows: State
    vocab_size: int  # of the target; draft laws are cut or padded to it
    texts: Texts = field(default_factory=Texts)
    growths: dict[int, Growth] = field(default_factory=dict)


class Model:
    """Draft with a model that uses the target's tokenizer.

    temperature: of the drafter; None uses the request's. Any value is lossless, but it changes how
    often the target agrees.
    children: how a sampled tree draws the children of a node, for rules that need their
    probabilities.
    """

    def __init__(
        self,
        model: Any,
        *,
        temperature: float | None = None,
        children: Children | str = Children.GREEDY_PLUS_ONE,
    ) -> None:
        if temperature is not None and not 0 <= temperature < np.inf:
            cure = "Use 0 for greedy, more, or None to follow the request."
            raise InputError(explain("The draft temperature is out of range.", temperature, cure))
        if children not in {*Children, *(kind.value for kind in Children)}:
            cure = f"Use one of {', '.join(kind.value for kind in Children)}."
            raise InputError(explain("Children cannot be drawn like that.", repr(children), cure))
        self.model: LanguageModel = as_model(model)
        self.temperature = temperature
        self.children = Children(children)

    @property
    def name(self) -> str:
        return self.model.name

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> ModelDraftState:
        check_same_vocabulary(target, self.model)
        limit = self.model.max_context
        capacity = capacity if limit is None else min(capacity, limit)
        return ModelDraftState(self.model.start(num_rows, capacity), target.vocab_size)

    def enter(
        self, state: ModelDraftState, row: int, tokens: Sequence[int], num_prompt: int
    ) -> None:
        state.texts.enter(row, tokens, num_prompt)

    def propose(
        self, state: ModelDraftState, turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        # Asking `scores_trees` may run trial passes, so it is not asked for chains.
        is_tree = not all(turn.is_chain for turn in turns)
        width = None if is_tree and getattr(self.model, "scores_trees", False) else 1
        growths = []
        for turn in turns:
            text = state.texts[turn.row]
            growths.append(Growth(turn, text, self._room(turn, text.tokens), width))
        state.growths = {}
        while busy := [growth for growth in growths if growth.frontier]:
            forks = []
            for growth, logits in zip(busy, self._score(state, busy), strict=True):
                for node, row in zip(growth.frontier, logits, strict=True):
                    parent = fork(
                        growth, node, row, state.vocab_size, self.temperature,
                        shared_noise=shared_noise,
                    )  # fmt: skip
                    forks += [parent] if parent else []
            if shared_noise:
                grow_racing(forks)
            else:
                grow_sampled(forks, self.children)
            for growth in busy:
                growth.next_level()
        drawn = Drawn.SHARED if shared_noise else Drawn.SAMPLED
        return [growth.guess(drawn) for growth in growths]

    def observe(self, state: ModelDraftState, outcomes: Sequence[Outcome]) -> None:
        """Keep the accepted tokens that the drafting model was fed. The last guess is never fed to
        it."""
        state.texts.observe(outcomes)
        drafted = [outcome for outcome in outcomes if outcome.row in state.growths]
        if drafted:
            kept = [state.growths[outcome.row].kept(outcome.path) for outcome in drafted]
            self.model.commit(state.rows, [outcome.row for outcome in drafted], kept)
            state.growths = {}

    def release(self, state: ModelDraftState, row: int) -> None:
        self.model.release(state.rows, row)
        state.texts.release(row)
        state.growths.pop(row, None)

    def _room(self, turn: Turn, tokens: Sequence[int]) -> int:
        """How many tokens can be drafted within the turn's height and the drafting model's context;
        0 if the text has a token that this model does not know."""
        if max(tokens) >= self.model.vocab_size:
            return 0
        limit = self.model.max_context
        return turn.height if limit is None else min(turn.height, limit - len(tokens) + 1)

    def _score(self, state: ModelDraftState, growths: Sequence[Growth]) -> list[HostArray]:
        """The drafting model's logits after each node to extend, (nodes, V) for each growth."""
        rows, feeds, parents = [], [], []
        for growth in growths:
            row = growth.turn.row
            pending = growth.text.tokens[state.rows.lengths[row] :]
            tokens, tree = growth.feed(len(pending))
            rows.append(row)
            feeds.append([*pending, *tokens])
            parents.append(tree)
            state.growths[row] = growth
        counts = [len(growth.frontier) for growth in growths]
        if any(tree is not None for tree in parents):
            logits = self.model.score(state.rows, rows, feeds, counts, parents)
        else:
            logits = self.model.score(state.rows, rows, feeds, counts)
        host = to_numpy(logits)
        return [host[index, :count] for index, count in enumerate(counts)]
