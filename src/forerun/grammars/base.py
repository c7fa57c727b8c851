"""The interface of grammars, and the cursor with which one matcher serves every slot of a draft.

A grammar is a description.  For each request it makes a matcher, which has a place in the text and
moves forward by a token with `accept` and back with `rollback`.  The engine needs the mask after
the text and some draft tokens; a `Cursor` moves the matcher there.  Slots come in the order of a
chain or tree, so most moves are one token long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from forerun.base.errors import InputError, explain, shown

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Words = np.ndarray[Any, np.dtype[np.int32]]
"""A mask as bits, (ceil(V / 32),): token t is bit t % 32 of word t // 32."""

NOTHING_ALLOWED = "the grammar allows no token. Correct it: it leads to a place without a way on."


class Matcher(Protocol):
    """A grammar at one place in the text of one request."""

    def accept(self, token: int) -> bool:
        """Move forward by a token; if the grammar does not allow it, stay and return False."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        ...

    def mask(self) -> Any:
        """The tokens that may come next: booleans (V,), or the allowed ids."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must come next because the grammar leaves no choice; may be empty.

        They are drafted and verified like any draft: a wrong one costs time and changes no text.
        """
        ...


class PackedMatcher(Matcher, Protocol):
    """A matcher that has its masks as bits, too, which is what a device reads."""

    def words(self) -> Words:
        """The tokens that may come next, as bits; those past V are 0."""
        ...


@runtime_checkable
class Grammar(Protocol):
    """The description of a language, for `Sampling(grammar=...)`."""

    def matcher(self, tokenizer: Any, vocab_size: int, endings: Sequence[int]) -> Matcher:
        """A matcher at the beginning of the output.

        tokenizer: the model's, None if it has none.  vocab_size: V, the width of the logits.
        endings: the tokens that end a text, to be allowed where the grammar may end.
        """
        ...


class Cursor:
    """A grammar in use for one request, with the mask after any output, drafted tokens included."""

    def __init__(self, make: Callable[[], Matcher]) -> None:
        self._make = make
        self._matcher: Matcher | None = make()
        self._taken: list[int] = []  # tokens that the matcher has accepted

    def __call__(self, output: Sequence[int]) -> Any:
        """The tokens that may follow an output: booleans (V,), or the allowed ids.

        Raises ValueError for an output that the grammar does not allow.
        """
        return self._at(output, lambda matcher: matcher.mask())

    def words(self, output: Sequence[int]) -> Words | None:
        """The allowed tokens as bits, if the matcher has them."""

        def ask(matcher: Any) -> Words | None:
            words: Words | None = matcher.words() if hasattr(matcher, "words") else None
            return words

        answer: Words | None = self._at(output, ask)
        return answer

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that must follow an output, as far as the grammar knows them."""
        return list(self._at(output, lambda matcher: matcher.forced()))

    def _at(self, output: Sequence[int], ask: Callable[[Matcher], Any]) -> Any:
        """The result of `ask` for the matcher after an output.

        A matcher that raises is dropped, and the next call makes a new one.
        """
        matcher, self._matcher = self._matcher, None
        if matcher is None:
            matcher, self._taken = self._make(), []
        refused = self._move(matcher, list(output))
        answer = ask(matcher) if refused is None else None
        self._matcher = matcher
        if refused is not None:
            raise ValueError(f"the grammar does not allow token {refused} there")
        return answer

    def _move(self, matcher: Matcher, output: list[int]) -> int | None:
        """Move a matcher to an output; returns the first token that it refuses, or None."""
        num_shared = _num_shared(self._taken, output)
        if num_shared < len(self._taken):
            matcher.rollback(len(self._taken) - num_shared)
            del self._taken[num_shared:]
        for token in output[num_shared:]:
            if not matcher.accept(token):
                return token
            self._taken.append(token)
        return None


def packed(mask: Mask) -> Words:
    """A mask as bits."""
    padded = np.zeros(-(-len(mask) // 32) * 32, dtype=bool)
    padded[: len(mask)] = mask
    return np.packbits(padded, bitorder="little").view("<i4").astype(np.int32, copy=False)


def unpacked(words: Words, vocab_size: int) -> Mask:
    """The mask of V tokens that these bits are."""
    octets = words.astype("<i4", copy=False).view(np.uint8)
    return np.unpackbits(octets, count=vocab_size, bitorder="little").view(bool)


def allowed_after(
    grammar: Callable[[Sequence[int]], Any] | Grammar, output: Sequence[int], vocab_size: int
) -> Mask:
    """Booleans (V,): the tokens that a grammar allows after an output; ValueError if it allows
    none."""
    assert callable(grammar), "a Grammar is bound to its request by then"
    allowed = _as_row(grammar(output), vocab_size)
    if not allowed.any():
        raise ValueError(NOTHING_ALLOWED)
    return allowed


def allowed_words(
    grammar: Callable[[Sequence[int]], Any] | Grammar, output: Sequence[int], vocab_size: int
) -> Words:
    """The tokens that a grammar allows, as a bit mask; a grammar that has a bit mask gives it
    directly."""
    words = grammar.words(output) if isinstance(grammar, Cursor) else None
    if words is None:
        return packed(allowed_after(grammar, output, vocab_size))
    if not words.any():
        raise ValueError(NOTHING_ALLOWED)
    return words


def _as_row(answer: Any, vocab_size: int) -> Mask:
    """The answer of a grammar, which may be booleans or ids, as booleans (V,)."""
    if isinstance(answer, Iterable) and not hasattr(answer, "dtype"):
        answer = list(answer) or np.empty(0, dtype=np.int64)
    array = np.asarray(answer)
    if array.dtype != bool and not np.issubdtype(array.dtype, np.integer):
        cure = f"Return {vocab_size} booleans, or the allowed ids."
        wrong = "The grammar's function returned neither a mask nor token ids."
        raise InputError(explain(wrong, f"{shown(answer):.80}", cure))
    if array.dtype == bool:
        if array.shape != (vocab_size,):
            cure = f"Return {vocab_size} booleans, or the allowed ids."
            raise InputError(explain("The grammar's mask has a wrong shape.", array.shape, cure))
        return array
    if array.size and not (array.min() >= 0 and array.max() < vocab_size):
        cure = f"Ids must lie in 0 .. {vocab_size - 1}."
        raise InputError(explain("The grammar allows unknown tokens.", array.tolist()[:5], cure))
    allowed = np.zeros(vocab_size, dtype=bool)
    allowed[array.astype(np.int64)] = True
    return allowed


def _num_shared(one: list[int], other: list[int]) -> int:
    """The number of leading tokens that two lists share; fast if one begins with the other."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(i for i in range(most) if one[i] != other[i])
