"""The interface of models: rows of tokens that the engine scores, then commits.

A batch is a set of rows. Each row stores a prefix of one request's text and has a length of its
own; requests enter and leave rows between rounds. A round changes a row by `score`, then `commit`;
to roll back is to commit less. Between rounds, a row can be released, cut short, or filled with the
beginning of another row (`Prefixes`).

A model may store fewer tokens than were committed. The engine reads `state.lengths` and feeds
`text[length:]`, the *pending* tokens, in front of the next draft. That one rule covers all three
strategies: *crop* stores everything that was kept, *snapshot* goes back to an earlier state and
replays, *recompute* stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, Self, SupportsIndex, runtime_checkable

from forerun.base.errors import InputError, UnsupportedError, explain

Parents = Sequence[int]
Kept = int | Sequence[int]


class State(Protocol):
    """The state of a model for a batch; only the model that made it reads more than `lengths`."""

    lengths: list[int]  # tokens stored per row, as of the last commit


@runtime_checkable
class LanguageModel(Protocol):
    """Any model that can score the continuation of several texts at once.

    A model whose attribute `scores_trees` is true can score several continuations of each text.
    The engine passes `parents` and paths to such models only.  A model with a method `row_race`
    samples tokens itself under the rule `match`, with the noise of `forerun.noise.race`.
    """

    name: str
    vocab_size: int
    max_context: int | None  # longest text whose scores can be trusted; None: no such limit

    def start(self, num_rows: int, capacity: int = 0) -> State:
        """Make `num_rows` empty rows.

        capacity: a hint, the number of tokens that the longest row will hold; 0 if unknown. Rows
        may become longer than that. Storage grows with the rows in use and their texts, so a large
        `num_rows` costs nothing as long as low row numbers are used first.
        """
        ...

    def score(
        self,
        state: Any,
        rows: Sequence[int],  # (R,), distinct
        tokens: Sequence[Sequence[int]],  # (R, ragged): pending tokens, then the draft
        num_logits: Sequence[int],  # (R,), each from 1 to the number of tokens
        parents: Sequence[Parents | None] | None = None,  # (R,): the shape of each row's draft
    ) -> Any:
        """Feed `tokens[r]` after what `rows[r]` stores; nothing is kept until `commit`.

        Returns logits (R, max(num_logits), V): the ones after each of the last `num_logits[r]`
        tokens, left-aligned. Entries past `num_logits[r]` are undefined.

        Scoring again before a commit replaces the earlier score. Where the new tokens begin with
        the old ones, that beginning is not computed again, so a drafter can grow its draft token
        by token with `num_logits` 1 and commit what was accepted at the end of the round.

        The last `len(parents[r])` of `tokens[r]` are the nodes of a tree: each sees the text, the
        tokens fed before the tree and its own ancestors, and stands right after its parent, which
        is an earlier node or, for -1, the last token before the tree. None is a chain.
        """
        ...

    def commit(self, state: Any, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        """Keep of the tokens just scored in `rows[r]` the first `kept[r]`, or, where `kept[r]` is
        a list, those with these indices: a path, in ascending order. Forget the rest."""
        ...

    def release(self, state: Any, row: int) -> None:
        """Empty a row for the next request."""
        ...


def identity(model: LanguageModel) -> Any:
    """The object under which facts about a model are kept: its attribute `identity`, which wrappers
    of one model share, or the model itself if it has none."""
    return getattr(model, "identity", model)


GENERATION_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"
)  # fmt: skip


def generation_defaults(model: Any) -> dict[str, float]:
    """The sampling options in the `generation_config` of a transformers model, by name."""
    config = getattr(model, "generation_config", None)
    values = {name: getattr(config, name, None) for name in GENERATION_FIELDS}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def endings_of(model: Any) -> Sequence[int]:
    """The ids of the tokens with which a transformers model ends a text; may be empty."""
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return [ids] if isinstance(ids, int) else ids
    return ()


class CpuPass:
    """The base of models that compute on our own CPU pass."""

    name: str
    tokenizer: Any
    packed: Any  # the weights, as the pass reads them


class GpuPass:
    """The base of models that compute on our own GPU pass."""

    vocab_size: int
    max_context: int | None
    device: Any


@runtime_checkable
class Inspectable(Protocol):
    """A model whose hidden states can be read, for drafters that go on from them."""

    hidden_size: int
    num_layers: int

    def watch(self, state: Any, layers: Sequence[int]) -> None:
        """From now on keep the hidden states after `layers[i]` layers (0: the embedding)."""
        ...

    def watched(self, state: Any, row: int) -> Any:
        """Hidden states (N, len(layers) * hidden_size) of the tokens that the last commit added
        to a row, side by side in the order of `layers`; an array of the model's library.

        A state that stores fewer tokens than were committed has a list `shown`: for each row the
        number of tokens whose states were shown. Tokens that are fed again are not shown again.

        After a method of `Prefixes`, the next commit shows all tokens of the row instead.
        """
        ...


@runtime_checkable
class Prefixes(Protocol):
    """A model whose rows can take over the beginning of another row without a pass.

    Both methods return the new `state.lengths[row]`, which may be less than asked for: a model that
    stores nothing returns 0. The engine feeds `text[length:]` as always, so it needs no other case.

    Only committed tokens count. Scores of `row` that were not committed are forgotten; those of
    `source` stay.

    A drafter that reads hidden states needs those of all tokens, and one that is new to a row has
    seen none. So after either method the next commit shows in `watched` the states of all tokens of
    the row, those it took over included. They are missing if the model was not yet watched when
    they were computed: then there are fewer states than `state.lengths[row]`.
    """

    def copy_prefix(self, state: Any, source: int, row: int, length: int) -> int:
        """Let the empty `row` store the first `length` tokens of `source`, as if it had been fed
        them. Later changes of one row do not reach the other."""
        ...

    def truncate(self, state: Any, row: int, length: int) -> int:
        """Cut a row to its first `length` tokens."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A model whose rows share room that can run out.  States of one model may share it too."""

    def longest(self, state: Any) -> int:
        """The number of tokens of the longest text that fits if no other text takes room."""
        ...

    def reserve(self, state: Any, row: int, length: int) -> bool:
        """Make room for the first `length` tokens of a row and for the next drafts, if need be in
        place of rows that rest. Returns False, and changes nothing, where there is no room."""
        ...

    def rest(self, state: Any, row: int) -> None:
        """Keep what a row stores until its room is needed, or until another call names the row.
        Then `state.lengths[row]` is 0."""
        ...


def check_score(
    lengths: Sequence[int],
    rows: Sequence[int],
    tokens: Sequence[Sequence[int]],
    num_logits: Sequence[int],
    vocab_size: int,
) -> None:
    """Raise InputError for invalid arguments of `score`; a device would report them badly."""
    if not 0 < len(rows) == len(tokens) == len(num_logits):
        raise InputError(
            explain(
                "Rows, tokens and num_logits must have one entry per scored row.",
                f"{len(rows)} rows, {len(tokens)} token lists and {len(num_logits)} counts",
                "Pass the same number of each, at least one.",
            )
        )
    if len(set(rows)) < len(rows) or not (min(rows) >= 0 and max(rows) < len(lengths)):
        raise InputError(
            explain(
                f"Rows must be distinct and within the {len(lengths)} rows of this state.",
                list(rows),
                "Name each row once.",
            )
        )
    for row, row_tokens, count in zip(rows, tokens, num_logits, strict=True):
        if not 1 <= count <= len(row_tokens):
            raise InputError(
                explain(
                    f"Row {row} must ask for at least one and at most all of its logits.",
                    f"num_logits {count} for {len(row_tokens)} tokens",
                    "Feed the pending tokens again, or ask for fewer logits.",
                )
            )
        if min(row_tokens) < 0 or max(row_tokens) >= vocab_size:
            raise InputError(
                explain(
                    f"Row {row} holds a token that is not in the vocabulary of {vocab_size}.",
                    f"tokens from {min(row_tokens)} to {max(row_tokens)}",
                    "Check that drafter and target share one tokenizer.",
                )
            )


def check_commit(rows: Sequence[int], scored: Sequence[int], kept: Sequence[Kept]) -> list[int]:
    """The number of leading tokens that each row keeps, for models without trees.

    scored: the number of tokens scored in each row.  Raises InputError for tokens that were never
    scored, which would extend a row with garbage, and for a path that is not a prefix, which only a
    model that scores trees can keep.
    """
    counts = []
    for row, most, keeps in zip(rows, scored, kept, strict=True):
        count = keeps if isinstance(keeps, int) else len(keeps)
        if not 0 <= count <= most:
            raise InputError(
                explain(
                    f"Row {row} can keep at most the {most} tokens scored since its last commit.",
                    f"kept {keeps}",
                    "Score before each commit and keep a prefix of what was scored.",
                )
            )
        if not isinstance(keeps, int) and list(keeps) != list(range(count)):
            raise InputError(
                explain(
                    f"Row {row} can keep only a beginning of what was scored.",
                    f"kept {list(keeps)}",
                    "Keep paths of a tree with a model whose `scores_trees` is true.",
                )
            )
        counts.append(count)
    return counts


def check_truncate(lengths: Sequence[int], row: int, length: int) -> None:
    """Raise InputError for a row that does not exist, or a negative length."""
    if not 0 <= row < len(lengths):
        wrong = f"There is no such row among the {len(lengths)} rows of this state."
        raise InputError(explain(wrong, row, f"Use 0 to {len(lengths) - 1}."))
    if length < 0:
        wrong = "A row cannot keep a negative number of tokens."
        raise InputError(explain(wrong, length, "Use 0 or more."))


def check_copy(lengths: Sequence[int], source: int, row: int, length: int) -> None:
    """Raise InputError for rows that do not exist, or a target row that is not empty."""
    check_truncate(lengths, source, length)
    check_truncate(lengths, row, length)
    if lengths[row] > 0 or row == source:
        wrong = "A prefix can only be copied into another row that is empty."
        received = f"row {source} to row {row}, which stores {lengths[row]} tokens"
        raise InputError(explain(wrong, received, "Release the row first."))


def check_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raise InputError for layers that a model does not have, or for an empty list."""
    if not layers or not all(0 <= layer <= num_layers for layer in layers):
        wrong = f"The layers to watch must lie in 0 .. {num_layers}."
        raise InputError(explain(wrong, list(layers), "Name at least one; 0 is the embedding."))


def check_watched(is_watched: bool, row: int) -> None:
    """Raise InputError if hidden states are asked for but `watch` was never called."""
    if not is_watched:
        cure = "Call `watch` with the layers wanted before the row is scored."
        raise InputError(explain("No hidden states were kept.", f"row {row}", cure))


def room(stored: int, needed: int, hint: int) -> int:
    """The size to allocate: at least `needed`, and twice `stored` so that copies are rare, but not
    more than `hint` as long as that is enough."""
    return max(needed, 2 * stored if needed > hint else min(2 * stored, hint))


def shared_prefix(old: Sequence[int], new: Sequence[int], most: int) -> int:
    """The number of leading tokens that two sequences share, at most `most`.

    It is found by bisection, because comparing slices is much faster than comparing tokens.
    """
    low, high = 0, min(most, len(old), len(new))
    if list(old[:high]) == list(new[:high]):
        return high
    while low + 1 < high:
        middle = (low + high) // 2
        if list(old[low:middle]) == list(new[low:middle]):
            low = middle
        else:
            high = middle
    return low


def size_name(num_parameters: int) -> str:
    """A number of parameters in words: 135000000 gives "135M parameters"."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if num_parameters >= size:
            return f"{num_parameters / size:.3g}{unit} parameters"
    return f"{num_parameters} parameters"


class NotPickled:
    """The base of models that refuse to be pickled or deeply copied, with a cure in the error.

    Their weights lie in the memory of a process or a device, and their code is compiled for them.
    """

    name: str

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        cure = "Load it in each process, with forerun.load or forerun.wrap there."
        raise self._refusal("pickled", cure)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise self._refusal("deeply copied", "Pass it on as it is: engines and threads share it.")

    def __copy__(self) -> Self:
        """A model with the same weights; without this method, `copy` would call `__reduce_ex__`."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def _refusal(self, done: str, cure: str) -> UnsupportedError:
        wrong = f"A loaded model stays where it is and cannot be {done}."
        return UnsupportedError(explain(wrong, f"{type(self).__name__}({self.name!r})", cure))
