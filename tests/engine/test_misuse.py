"""What a stranger writes first, and that the answer says what to write instead."""

from __future__ import annotations

import copy
import logging
import pickle
from dataclasses import replace
from typing import Any

import pytest
from drafting import Quiet
from reciting import TEXT, Reciter
from tiny_models import Architecture

import forerun as fr
from forerun import InputError, Sampling, Tree, UnsupportedError
from forerun.drafters import Heads, NGram
from forerun.models import TableModel

TABLE = TableModel.random(vocab_size=7, order=2, seed=1)


class Mute:
    """Everything but the last two verbs."""

    name = "mute"

    def start(self, *_: Any) -> None: ...

    def propose(self, *_: Any, **__: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("call", [fr.generate, fr.stream])
@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (Heads, r"Received the class Heads. Write Heads\(\)."),
        (NGram, r"Received the class NGram. Write NGram\(\)."),
        ("ngram:3", "ngram takes nothing after a colon"),
        ("", "No drafter is named"),
        (3, r"does not draft. Received int without start, enter, propose, observe, release"),
        (Mute(), r"does not draft. Received Mute without enter, observe, release"),
    ],
)
def test_what_is_no_drafter_is_refused(call: Any, drafter: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(TABLE, [1], drafter=drafter)


class Unwilling(Quiet):
    """Raises what it is told to when it starts."""

    name = "unwilling"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def start(self, *_: Any, **__: Any) -> Any:
        raise self.error


def test_a_drafter_that_does_not_start_is_refused_by_name() -> None:
    message = "The drafter unwilling did not start with the target.*KeyError: 'three'"
    with pytest.raises(UnsupportedError, match=message) as refused:
        fr.generate(TABLE, [1], drafter=Unwilling(KeyError("three")))
    assert isinstance(refused.value.__cause__, KeyError)
    own = InputError("only for large models")
    with pytest.raises(InputError) as told:
        fr.generate(TABLE, [1], drafter=Unwilling(own))
    assert told.value is own


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (
            [1],
            {"sampling": {"temperature": 1}},
            r"sampling has a wrong type. Received the dict .*Write Sampling\(temperature=1\).",
        ),
        ([[1], [2]], {"sampling": [Sampling(), {"seed": 3}]}, r"Write Sampling\(seed=3\)"),
        ([1], {"sampling": "greedy"}, "wrong type. Received the str 'greedy'. Pass a forerun.Samp"),
        ([1], {"max_new_tokens": 3.0}, "Received the float 3.0. Pass a whole number: 3."),
        ([1], {"max_new_tokens": "3"}, "max_new_tokens has a wrong type. Received the str '3'"),
        (5, {}, r"That is no prompt.*put it in a list: \[5\]"),
        ([[1], 5], {}, r"That is no prompt.*put it in a list: \[5\]"),
        ({"role": "user", "content": "hi"}, {}, r"If it is a message, put it in a list: \[{'role'"),
        ([1], {"tree": 4, "rule": "ratio"}, r"the last two with a shape.*--tree 2,2"),
        ([1], {"tree": 4, "rule": "siblings"}, r"Tree.of_branching\(\(2, 2\)\) or --tree 2,2"),
    ],
)
def test_the_answer_says_what_to_write(prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        fr.generate(TABLE, prompt, **options)


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ({"draft_length": 4}, ["no drafter, so draft_length did nothing"]),
        ({"tree": 4}, ["no drafter, so tree did nothing"]),
        (
            {"draft_length": 4, "tree": Tree.chain(2)},
            ["no drafter, so draft_length and tree did nothing"],
        ),
        ({"draft_length": 0}, []),
        ({"draft_length": "auto"}, []),
        ({}, []),
        ({"draft_length": 4, "tree": 4, "drafter": Quiet()}, []),
    ],
)
def test_options_for_a_drafter_that_is_not_there_are_noted(
    options: dict[str, Any], idle: list[str]
) -> None:
    found = fr.generate(TABLE, [[1], [2]], max_new_tokens=3, **{"drafter": None} | options)
    wanted = [note for note in found[0].stats.notes if "cannot score trees" not in note]
    assert wanted == idle
    assert found[0].stats.notes == found[1].stats.notes


def test_a_prompt_that_is_too_long_is_told_in_our_words_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import logging as theirs

    target = Reciter(TEXT)
    target.max_context = 5
    tokenizer = target.tokenizer
    monkeypatch.setattr(tokenizer, "model_max_length", 5)
    monkeypatch.setattr(tokenizer, "deprecation_warnings", {})
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    before = theirs.get_verbosity()
    with pytest.raises(InputError, match="no room in the context"):
        fr.generate(target, TEXT, drafter=None)
    assert caplog.text == ""
    assert theirs.get_verbosity() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, r"no option 'temprature'. Received temprature=1. .*mean temperature\?"),
        ({"do_sample": True}, "Leave it out: temperature=0 is greedy"),
        ({"max_tokens": 5}, "Pass max_new_tokens to generate"),
        ({"stop": "x"}, "Pass stop to generate"),
        ({"bias": {1: 2.0}}, "Write logit_bias={token id: bias}"),
        ({"nosuch": 1}, "Its options are temperature, top_k, .*seed.$"),
    ],
)
def test_an_unknown_option_of_sampling_is_answered(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**options)


def test_sampling_is_still_a_dataclass() -> None:
    sampling = Sampling(0.5, seed=3)
    assert replace(sampling, top_p=0.9) == Sampling(temperature=0.5, seed=3, top_p=0.9)
    assert pickle.loads(pickle.dumps(sampling)) == copy.copy(sampling) == sampling


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"do_sample": True, "temperature": 0.5},
            r"Received do_sample=True, temperature=0.5. Write sampling=.*Sampling\(temperature=0.5",
        ),
        ({"do_sample": True}, r"Write sampling=forerun.Sampling\(\)."),
        ({"do_sample": False}, "it is greedy unless `sampling` is given.*Leave it out"),
        ({"assistant_model": Quiet()}, "Received assistant_model=a Quiet. Use drafter."),
    ],
)
def test_options_of_transformers_are_answered(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fr.generate(TABLE, [1], **options)


def test_a_model_drafts_by_itself() -> None:
    """A model of ours, or of transformers, is taken where a drafter is."""
    hugging = Architecture("llama", "crop").build()
    for target, model in ((TABLE, TABLE), (hugging, hugging), (hugging, fr.wrap(hugging))):
        answer = fr.generate(target, [1, 2], drafter=model, draft_length=3, max_new_tokens=8)
        assert answer.stats.accepted == answer.stats.drafted > 0
        assert answer.tokens == fr.generate(target, [1, 2], drafter=None, max_new_tokens=8).tokens
