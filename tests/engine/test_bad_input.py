"""What is refused, what is survived, and that the message says what and why."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from drafting import Quiet, Random, Saying, tiny_pair
from processors import CallCounter
from reciting import TEXT, Reciter
from transformers import LogitsProcessorList, UnbatchedClassifierFreeGuidanceLogitsProcessor

import forerun as fr
from forerun import InputError, Sampling, UnsupportedError
from forerun.drafters import Guess, Model, NGram, Turn
from forerun.models import FunctionModel, TableModel
from forerun.rules.types import Drawn

TABLE = TableModel.random(vocab_size=7, order=2, seed=1)
RECITER = Reciter(TEXT)


class Short(TableModel):
    max_context = 5


SHORT = Short(7, 2, TABLE.table)


@pytest.mark.parametrize(
    ("target", "prompt", "options", "message"),
    [
        (TABLE, [[1], []], {}, "prompt is empty"),
        (TABLE, np.empty(0, dtype=np.int64), {}, "prompt is empty"),
        (RECITER, "", {}, "prompt is empty"),
        (TABLE, "text", {}, r"A prompt given as text needs a tokenizer.*forerun.wrap\(model, tok"),
        (TABLE, [{"role": "user", "content": "hi"}], {}, "A chat needs a tokenizer"),
        (TABLE, [1, 7], {}, r"tokens outside the vocabulary. Received \[7\].*0 .. 6"),
        (TABLE, [-1], {}, "outside the vocabulary"),
        (TABLE, [0.5], {}, "That is no prompt. Received the float 0.5. Pass"),
        (TABLE, [True], {}, "That is no prompt. Received a list of bool. Pass"),
        (TABLE, True, {}, "That is no prompt. Received the bool True. Pass"),
        (TABLE, None, {}, "That is no prompt. Received None. Pass"),
        (TABLE, b"hello", {}, "That is no prompt. Received bytes. Bytes are no text: decode"),
        (TABLE, [("a", "b")], {}, "That is no prompt. Received a tuple of str. Pass"),
        (TABLE, [1, "a", None], {}, "That is no prompt. Received a list of int and str and None"),
        (TABLE, np.int64(3), {}, r"That is no prompt.*put it in a list: \[3\]"),
        (TABLE, np.ones(2), {}, r"Received an array of float64, of shape \(2,\). Pass a string"),
        (TABLE, {"ids": [1]}, {}, "That is no prompt. Received the dict {'ids'"),
        (RECITER, "a\ud800b", {}, r"prompt holds half of a character.*Received 'a\\ud800b'. Leave"),
        (TABLE, {"input_ids": []}, {}, "prompt is empty"),
        (TABLE, {"input_ids": "1"}, {}, "its input_ids are no token ids. Received '1'"),
        (TABLE, [[1, [2, 3]]], {}, "That is no prompt"),
        (TABLE, np.zeros((1, 1, 1), dtype=np.int64), {}, "That is no prompt"),
        (SHORT, [1] * 5, {}, "no room in the context. Received 5 tokens for a context of 5"),
        (SHORT, [1] * 9, {}, "Shorten it to 4 tokens or fewer"),
        (SHORT, [[1], [1] * 9], {}, "no room in the context"),
        (TABLE, [1], {"max_new_tokens": 0}, "max_new_tokens is too small. Received 0"),
        (TABLE, [1], {"max_new_tokens": -3}, "max_new_tokens is too small"),
        (TABLE, [1], {"max_new_tokens": 2.5}, "max_new_tokens has a wrong type"),
        (TABLE, [1], {"max_new_tokens": None}, "wrong type. Received the NoneType None. Pass a"),
        (TABLE, [1], {"max_new_tokens": [1, 2]}, "does not fit the prompts. Received 2 for 1"),
        (TABLE, [[1], [2]], {"sampling": [Sampling()]}, "sampling does not fit the prompts"),
        (TABLE, [1], {"draft_length": -1}, "draft_length is out of range. Received -1"),
        (TABLE, [1], {"draft_length": 1.5}, "draft_length has a wrong type. Received the float"),
        (TABLE, [1], {"draft_length": "5"}, "wrong type. Received the str '5'. Use a whole numb"),
        (TABLE, [1], {"logprobs": -1}, "logprobs is out of range"),
        (TABLE, [1], {"batch_size": 0}, "batch_size is out of range"),
        (TABLE, [1], {"rule": "best"}, "no rule of that name. Received 'best'"),
        (TABLE, [1], {"stop": "end"}, "Stop strings need a tokenizer"),
        (RECITER, "the", {"stop": ""}, "A stop string is empty"),
        (RECITER, "the", {"stop": ["dog", ""]}, "A stop string is empty"),
        (TABLE, [1], {"stop_tokens": [7]}, r"stop_tokens names tokens outside .* Received \[7\]"),
        (TABLE, [1], {"stop_tokens": [-1]}, "stop_tokens names tokens outside"),
        (TABLE, [1], {"sampling": Sampling(logit_bias={9: 1.0})}, "logit_bias names tokens"),
        (TABLE, [1], {"sampling": Sampling(bad_words=[[1, 9]])}, "bad_words names tokens"),
        (TABLE, [1], {"sampling": Sampling(bad_words=["dog"])}, "bad word given as text needs"),
        (RECITER, "a", {"sampling": Sampling(bad_words=["\udc00"])}, "bad word holds half of a"),
        (TABLE, [1], {"sampling": Sampling(processors=["x"])}, "processor is not callable"),
        (TABLE, [1], {"drafter": np.eye(3)}, "does not draft. Received ndarray.*drafters.Model"),
        (
            TABLE,
            [1],
            {"stop": [5]},
            r"stop holds what is no text. Received \[5\].*stop_tokens=\[5\]",
        ),
        (TABLE, [1], {"stop": 5}, r"stop holds what is no text. Received 5.*stop_tokens=\[5\]"),
        (TABLE, [1], {"stop": b"x"}, "stop holds what is no text. Received b'x'. Decode bytes"),
        (TABLE, [1], {"stop": [b"x"]}, "stop holds what is no text. .* Decode bytes first"),
        (TABLE, [1], {"stop": [None]}, "stop holds what is no text. .* Pass strings"),
        (TABLE, [1], {"stop_tokens": 5}, "stop_tokens has a wrong type. Received the int 5"),
        (TABLE, [1], {"stop_tokens": ["5"]}, "stop_tokens has a wrong type.* in a list even for"),
    ],
)
def test_refused_before_the_first_token(
    target: Any, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fr.generate(target, prompt, **{"drafter": None} | options)


def test_processors_that_cannot_be_rolled_back_are_refused_by_name() -> None:
    target, _ = tiny_pair()
    guided = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, target.model)  # type: ignore[attr-defined]

    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, ids: Any, scores: Any) -> Any:
            return scores

    for processor, name in (
        (guided, "UnbatchedClassifierFreeGuidanceLogitsProcessor"),
        (LogitsProcessorList([guided]), "LogitsProcessorList"),
        (Locked(), "Locked"),
    ):
        with pytest.raises(UnsupportedError, match=rf"cannot be rolled back.*Received {name}"):
            fr.generate(target, [1], drafter=None, sampling=Sampling(processors=[processor]))


def broken_after(position: int, value: float) -> FunctionModel:
    """Texts that begin with 6 get a bad row at one output position."""

    def logits(ids: Any) -> Any:
        row = np.log(TABLE.probs(ids))
        if ids[0] == 6 and len(ids) == position + 2:
            row = np.full(7, value)
        return row

    return FunctionModel(logits, vocab_size=7, logits=True)


@pytest.mark.parametrize(
    ("value", "reason"), [(np.nan, "the logits hold NaN"), (-np.inf, "no token is possible")]
)
@pytest.mark.parametrize("position", [0, 3, 9])
@pytest.mark.parametrize(
    ("drafter", "rule"),
    [(None, "match"), (NGram(), "match"), (Model(TABLE), "match"), (Model(TABLE), "ratio"),
     (Model(TABLE), "block"), (Random(7), "ratio")],
)  # fmt: skip
def test_bad_logits_end_one_request_only(
    value: float, reason: str, position: int, drafter: Any, rule: str
) -> None:
    """It keeps its tokens before that position; the others never notice."""
    target = broken_after(position, value)
    prompts = [[1, 2], [6, 2], [3, 3]]
    how: dict[str, Any] = {
        "drafter": drafter, "rule": rule, "draft_length": 4, "sampling": Sampling(seed=2),
        "max_new_tokens": 12, "errors": "return",
    }  # fmt: skip
    found = fr.generate(target, prompts, **how)
    wanted = fr.generate(TABLE, prompts, **how)
    assert [answer.finish_reason for answer in found] == ["length", "error", "length"]
    assert [found[i].tokens for i in (0, 2)] == [wanted[i].tokens for i in (0, 2)]
    assert found[1].error is not None
    assert found[1].error.startswith(f"at output position {position}: {reason}")
    assert len(found[1].tokens) == len(found[1].fates) == position
    if rule == "match":
        assert found[1].tokens == wanted[1].tokens[:position]
    assert [answer.error for answer in (found[0], found[2])] == [None, None]
    pieces = list(fr.stream(target, prompts, **how))
    assert [p.finish_reason for p in pieces if p.index == 1 and p.finish_reason] == ["error"]


def test_a_bad_row_behind_the_end_of_the_text_does_not_matter() -> None:
    """A draft may run past the ending token into logits that plain decoding never sees."""
    plain = fr.generate(TABLE, [6, 2], drafter=None, sampling=Sampling(seed=2), max_new_tokens=12)
    ending = plain.tokens[2]
    first = plain.tokens.index(ending)
    target = broken_after(first + 1, np.nan)
    found = fr.generate(
        target, [6, 2], drafter=Model(TABLE), draft_length=8, sampling=Sampling(seed=2),
        max_new_tokens=12, stop_tokens=[ending],
    )  # fmt: skip
    assert (found.finish_reason, found.error) == ("stop", None)
    assert found.tokens == plain.tokens[: first + 1]


class Failing(Quiet):
    """Right and useful until something in it breaks."""

    name = "fragile"

    def __init__(self, where: str, after: int = 2) -> None:
        self.where, self.left = where, after

    def _maybe(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("out of glue")

    def guess(self, turn: Turn) -> Guess:
        self._maybe("propose")
        return Guess([1] * turn.budget)

    def enter(self, state: Any, *text: Any) -> None:
        super().enter(state, *text)
        self._maybe("enter")

    def observe(self, state: Any, outcomes: Any) -> None:
        super().observe(state, outcomes)
        self._maybe("observe")

    def release(self, state: Any, row: int) -> None:
        super().release(state, row)
        self._maybe("release")


PROMPTS = [[1, 2], [3], [4, 5, 6], [0]]
HOW: dict[str, Any] = {"sampling": Sampling(seed=2), "max_new_tokens": [12, 3, 12, 9]}


FAILED = "fragile failed and was done without: RuntimeError: out of glue"


@pytest.mark.parametrize("where", ["enter", "propose", "observe", "release"])
def test_a_drafter_that_raises_is_done_without(where: str) -> None:
    """Nobody's text changes; those it failed say so, and in the end so do those it never drafted
    for, since it failed whenever it was tried."""
    wanted = fr.generate(TABLE, PROMPTS, drafter=None, **HOW)
    found = fr.generate(
        TABLE, PROMPTS, drafter=Failing(where, after=0), batch_size=1, draft_length=3, **HOW
    )
    assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
    given_up = "fragile failed 3 times and was done without"
    told = [] if where == "release" else [FAILED]  # a request that is over has lost nothing
    assert [answer.stats.notes for answer in found] == [told] * 3 + [[given_up]]


def test_one_failure_does_not_cost_later_requests_the_drafter() -> None:
    """A server's drafter must not be gone for good because of one bad moment."""

    class Once(Failing):
        def _maybe(self, where: str) -> None:
            if where == self.where:
                self.left -= 1
                if self.left == -1:
                    raise RuntimeError("out of glue")

    wanted = fr.generate(TABLE, PROMPTS, drafter=None, **HOW)
    for where in ("enter", "propose", "observe", "release"):
        found = fr.generate(
            TABLE, PROMPTS, drafter=Once(where, after=1), batch_size=2, draft_length=5, **HOW
        )
        assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
        assert [FAILED] in [answer.stats.notes for answer in found[:3]]
        assert found[3].stats.notes == []
        assert found[3].stats.drafted > 0


def shaped(*shape: int) -> Any:
    return lambda turn: Guess([1] * turn.budget, Drawn.SAMPLED, np.full(shape, 0.1))


@pytest.mark.parametrize(
    ("answer", "rule", "message"),
    [
        (lambda turn: Guess([1] * (turn.budget + 3)), "match", "more tokens than it was asked"),
        (lambda turn: Guess([7]), "match", r"not in the target's vocabulary. Received \[7\]"),
        (lambda turn: Guess([-1]), "match", "not in the target's vocabulary"),
        (lambda turn: Guess([1.5]), "match", "TypeError: 'float' object"),
        (lambda turn: Guess(["1"]), "match", "TypeError: 'str' object"),
        (lambda turn: None, "match", "no Guess. Received None. Return Guess"),
        (lambda turn: [1, 2], "match", "no Guess. Received .1, 2.. Return Guess"),
        (lambda turn: Guess([1], Drawn.SHARED), "ratio", "used the target's noise under the rule"),
        (shaped(9, 7), "ratio", r"wrong shape. Received \(9, 7\)"),
        (shaped(4, 3), "block", "wrong shape"),
        (
            lambda turn: Guess([1] * turn.budget, Drawn.SAMPLED, np.eye(7)[[2] * turn.budget]),
            "ratio",
            "its own probabilities call impossible",
        ),
    ],
)
def test_a_drafter_that_breaks_its_promise_is_done_without(
    answer: Any, rule: str, message: str
) -> None:
    how: dict[str, Any] = {"draft_length": 4, **HOW, "rule": rule}
    wanted = fr.generate(TABLE, PROMPTS, drafter=None, **how)
    found = fr.generate(TABLE, PROMPTS, drafter=Saying(answer), **how)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    for each in found:
        (note,) = each.stats.notes
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(note)


@pytest.mark.parametrize(
    "answer",
    [
        lambda turn: Guess((1, 2)[: turn.budget]),  # type: ignore[arg-type]
        lambda turn: Guess(np.array([1, 2])[: turn.budget]),  # type: ignore[arg-type]
        lambda turn: Guess([np.int64(1)] * turn.budget),
        lambda turn: Guess(),
        lambda turn: Guess([], Drawn.SAMPLED, np.empty((0, 7))),
        lambda turn: Guess([1] * turn.budget, Drawn.POINT, np.full((turn.budget, 7), 1 / 7)),
    ],
)
@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_guesses_in_other_clothes_are_fine(answer: Any, rule: str) -> None:
    """Tuples and arrays are not added to lists; a point with a law is still a point."""
    how: dict[str, Any] = {"draft_length": 4, **HOW, "rule": rule}
    found = fr.generate(TABLE, PROMPTS, drafter=Saying(answer), **how)
    assert [each.stats.notes for each in found] == [[]] * 4
    assert all(type(token) is int for each in found for token in each.tokens)
    if rule == "match":
        wanted = fr.generate(TABLE, PROMPTS, drafter=None, **how)
        assert [each.tokens for each in found] == [each.tokens for each in wanted]


class Raising:
    """A processor with a bug that shows when 3 is in the text."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        if 3 in ids[0]:
            raise KeyError("three")
        return scores


@pytest.mark.parametrize("drafter", [None, Model(TABLE), NGram()], ids=["none", "model", "ngram"])
def test_a_processor_that_raises_ends_its_own_request(drafter: Any) -> None:
    samplings = [Sampling(seed=2, processors=[Raising()]), Sampling(seed=2)]
    how: dict[str, Any] = {"max_new_tokens": 12, "draft_length": 4, "errors": "return"}
    found = fr.generate(TABLE, [[1, 2], [1, 2]], drafter=drafter, sampling=samplings, **how)
    first = found[1].tokens.index(3)
    assert found[0].finish_reason == "error"
    assert found[0].error is not None
    assert found[0].error.startswith(f"at output position {first + 1}: KeyError('three')")
    assert found[0].tokens == found[1].tokens[: first + 1]
    wanted = fr.generate(TABLE, [1, 2], drafter=None, sampling=Sampling(seed=2), **how)
    assert found[1].tokens == wanted.tokens


def test_a_grammar_that_ends_with_the_text_does_not_cost_the_drafter() -> None:
    """It has no answer to what a draft says after the end, and must not be asked to have one."""

    def grammar(output: Any) -> Any:
        if 3 in output:
            raise LookupError("the sentence is over")
        return range(7)

    how: dict[str, Any] = {
        "sampling": Sampling(seed=1, grammar=grammar), "stop_tokens": [3], "max_new_tokens": 30,
    }  # fmt: skip
    plain = fr.generate(TABLE, PROMPTS, drafter=None, **how)
    for drafter in (Model(TABLE), NGram(), Random(7)):
        found = fr.generate(TABLE, PROMPTS, drafter=drafter, draft_length=5, **how)
        assert [each.tokens for each in found] == [each.tokens for each in plain]
        assert [each.finish_reason for each in found] == ["stop"] * 4
        assert [each.stats.notes for each in found] == [[]] * 4


def test_processors_of_transformers_lists_are_welcome() -> None:
    listed = LogitsProcessorList([CallCounter()])
    how: dict[str, Any] = {"max_new_tokens": 9}
    wanted = fr.generate(
        TABLE, [1], drafter=None, sampling=Sampling(seed=1, processors=[CallCounter()]), **how
    )
    for processors in (listed, [listed]):
        sampling = Sampling(seed=1, processors=processors)
        found = fr.generate(TABLE, [1], drafter=NGram(), sampling=sampling, **how)
        assert found.tokens == wanted.tokens


def test_draft_length_zero_and_nothing_to_say_are_plain_decoding() -> None:
    sampling = Sampling(seed=3)
    wanted = fr.generate(TABLE, [1], drafter=None, sampling=sampling)
    for drafter, draft_length in ((Model(TABLE), 0), (Quiet(), 5)):
        found = fr.generate(
            TABLE, [1], drafter=drafter, draft_length=draft_length, sampling=sampling
        )
        assert found.tokens == wanted.tokens
        assert found.stats.drafted == 0
        assert found.stats.rounds == len(found.tokens)
