"""Tokenizers that differ are told apart before the first token, and what differs is named."""

from __future__ import annotations

from typing import Any

import pytest
from reciting import TEXT, Reciter

import forerun as fr
from forerun.drafters import Model
from forerun.drafters.model import first_clash
from forerun.models import TableModel

ABC = {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"a": 0, "b": 2, "c": 1}, "2 tokens with different ids, for example 'b': 1 and 2"),
        ({"a": 0, "b": 1, "d": 2}, "1 ids with different tokens, for example 2: 'c' and 'd'"),
        ({"x": 0, "y": 1, "z": 2}, "3 ids with different tokens, for example 0: 'a' and 'x'"),
    ],
)
def test_what_differs_is_named(theirs: dict[str, int], message: str) -> None:
    assert first_clash(ABC, theirs) == message


@pytest.mark.parametrize("theirs", [ABC, {**ABC, "d": 3}, {"a": 0}, {"c": 2, "b": 1, "a": 0}])
def test_the_same_ids_for_the_same_tokens(theirs: dict[str, int]) -> None:
    """One may have more than the other, and the order of a dictionary means nothing."""
    assert first_clash(ABC, theirs) is None
    assert first_clash(theirs, ABC) is None


class Named(TableModel):
    """A table with a tokenizer."""

    def __init__(self, vocab: dict[str, int] | None, vocab_size: int) -> None:
        super().__init__(vocab_size, 1, TableModel.random(vocab_size, 1, seed=vocab_size).table)
        if vocab is not None:
            self.tokenizer = Words(vocab)


class Words:
    def __init__(self, vocab: dict[str, int]) -> None:
        self.vocab = vocab
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.vocab)

    def get_vocab(self) -> dict[str, int]:
        self.num_read += 1
        return self.vocab

    def decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        return "".join(f"{token} " for token in tokens)


def generate(target: TableModel, draft: TableModel) -> fr.Generation:
    answer: fr.Generation = fr.generate(target, [0], drafter=Model(draft), max_new_tokens=5)
    return answer


def test_the_refusal_says_which_models_and_what_to_do() -> None:
    swapped = {"a": 1, "b": 0, "c": 2}
    with pytest.raises(fr.InputError) as caught:
        generate(Named(ABC, 3), Named(swapped, 3))
    message = str(caught.value)
    assert "The tokenizers of table(vocab_size=3" in message
    assert "2 tokens with different ids, for example 'a': 0 and 1" in message
    assert "forerun.drafters.ThroughText" in message
    assert "--drafter through-text:table(vocab_size=3" in message


def test_padded_vocabularies_just_work() -> None:
    for sizes in ((3, 8), (8, 3)):
        answer = generate(Named(ABC, sizes[0]), Named(ABC, sizes[1]))
        assert len(answer.tokens) == 5
        assert answer.stats.notes == []


@pytest.mark.parametrize("named", [(None, None), (ABC, None), (None, ABC)])
def test_without_tokenizers_the_sizes_must_agree(named: Any) -> None:
    with pytest.raises(
        fr.InputError, match=r"vocabulary sizes differ. Received 3 for .* and 8 for"
    ):
        generate(Named(named[0], 3), Named(named[1], 8))
    assert len(generate(Named(named[0], 3), Named(named[1], 3)).tokens) == 5
    assert len(generate(Named(named[0], 200), Named(named[1], 202)).tokens) == 5, "1% is padding"


def test_real_tokenizers_that_differ() -> None:
    target, draft = Reciter(TEXT), Reciter(TEXT, vocab_size=300)
    assert target.vocab_size != draft.vocab_size
    answer = fr.generate(target, "the", drafter=Model(draft), max_new_tokens=5)
    assert answer.stats.notes == [], "one is a beginning of the other here"


def test_two_vocabularies_are_compared_once_until_one_grows() -> None:
    target, draft = Named({"a": 0, "b": 1}, 3), Named({"a": 0, "b": 1}, 3)
    for _ in range(3):
        generate(target, draft)
    assert target.tokenizer.num_read == draft.tokenizer.num_read == 1
    target.tokenizer.vocab["c"] = 2
    draft.tokenizer.vocab["d"] = 2
    with pytest.raises(fr.InputError, match="1 ids with different tokens"):
        generate(target, draft)


def test_tokenizers_that_cannot_be_remembered_are_compared_each_time() -> None:
    class Plain(Words):
        __hash__ = None  # type: ignore[assignment]

    target, draft = Named(None, 3), Named(ABC, 3)
    target.tokenizer = Plain(ABC)
    for _ in range(2):
        generate(target, draft)
    assert target.tokenizer.num_read == 2
