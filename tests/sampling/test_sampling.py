"""Each sampling option makes the law it says, checked against transformers or its formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from forerun import InputError, Sampling
from forerun.sampling.options import Bans
from forerun.sampling.options import law as law_of

VOCAB_SIZE = 37
PROMPT, OUTPUT = [4, 9, 9, 30], [1, 5, 9, 1, 5]
ENDINGS = (3, 7)
Row = np.ndarray[Any, Any]


def law(sampling: Sampling, logits: Row, bans: Bans | None = None, output: Any = OUTPUT) -> Row:
    bans = bans or Bans()
    found = law_of(sampling, logits, PROMPT, output, bans, sampling.processors).weights
    assert found.max() == 1, "the race needs weights of a known scale"
    return np.asarray(found / found.sum())


def of_transformers(processors: list[Any], logits: Row, output: Any = OUTPUT) -> Row:
    ids = torch.tensor([[*PROMPT, *output]])
    scores = LogitsProcessorList(processors)(ids, torch.tensor(logits)[None])
    return scores[0].softmax(-1).numpy()


def rows() -> list[Row]:
    generator = np.random.default_rng(0)
    return [scale * generator.normal(size=VOCAB_SIZE) for scale in (0.3, 1.0, 3.0, 10.0)]


SAME: dict[str, tuple[Sampling, Bans, list[Any]]] = {
    "temperature": (Sampling(temperature=0.7), Bans(), [TemperatureLogitsWarper(0.7)]),
    "hot": (Sampling(temperature=5.0), Bans(), [TemperatureLogitsWarper(5.0)]),
    "top_k": (Sampling(top_k=5), Bans(), [TopKLogitsWarper(5)]),
    "top_k of 1": (Sampling(top_k=1), Bans(), [TopKLogitsWarper(1)]),
    "top_k above V": (Sampling(top_k=99), Bans(), [TopKLogitsWarper(99)]),
    "top_p": (Sampling(top_p=0.8), Bans(), [TopPLogitsWarper(0.8)]),
    "small top_p": (Sampling(top_p=1e-9), Bans(), [TopPLogitsWarper(1e-9)]),
    "min_p": (Sampling(min_p=0.1), Bans(), [MinPLogitsWarper(0.1)]),
    "repetition_penalty": (
        Sampling(repetition_penalty=1.7),
        Bans(),
        [RepetitionPenaltyLogitsProcessor(1.7)],
    ),
    "repetition encouraged": (
        Sampling(repetition_penalty=0.6),
        Bans(),
        [RepetitionPenaltyLogitsProcessor(0.6)],
    ),
    "logit_bias": (
        Sampling(logit_bias={3: 2.5, 11: -4.0}),
        Bans(),
        [SequenceBiasLogitsProcessor([[[3], 2.5], [[11], -4.0]])],
    ),
    "bad words": (
        Sampling(),
        Bans(words=((6,), (5, 8), (9, 1, 5, 12), (1, 8))),
        [NoBadWordsLogitsProcessor([[6], [5, 8], [9, 1, 5, 12], [1, 8]])],
    ),
    "min_tokens": (
        Sampling(min_tokens=6),
        Bans(endings=ENDINGS),
        [MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, list(ENDINGS))],
    ),
    "min_tokens reached": (
        Sampling(min_tokens=5),
        Bans(endings=ENDINGS),
        [MinNewTokensLengthLogitsProcessor(len(PROMPT), 5, list(ENDINGS))],
    ),
    "a processor": (
        Sampling(processors=[NoRepeatNGramLogitsProcessor(2)]),
        Bans(),
        [NoRepeatNGramLogitsProcessor(2)],
    ),
    "everything, in transformers' order": (
        Sampling(
            logit_bias={3: 2.5},
            repetition_penalty=1.3,
            min_tokens=6,
            processors=[NoRepeatNGramLogitsProcessor(2)],
            temperature=0.8,
            top_k=20,
            top_p=0.9,
            min_p=0.05,
        ),
        Bans(words=((6,), (5, 8)), endings=ENDINGS),
        [
            SequenceBiasLogitsProcessor([[[3], 2.5]]),
            RepetitionPenaltyLogitsProcessor(1.3),
            NoBadWordsLogitsProcessor([[6], [5, 8]]),
            MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, list(ENDINGS)),
            NoRepeatNGramLogitsProcessor(2),
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.05),
        ],
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_same_law_as_transformers(name: str) -> None:
    sampling, bans, processors = SAME[name]
    for logits in rows():
        np.testing.assert_allclose(
            law(sampling, logits, bans), of_transformers(processors, logits), atol=1e-12
        )


@pytest.mark.parametrize("name", sorted(set(SAME) - {"top_k above V", "min_tokens reached"}))
def test_the_comparison_above_can_fail(name: str) -> None:
    """Each option really changes the law of these rows."""
    sampling, bans, _ = SAME[name]
    assert any(
        np.abs(law(sampling, row, bans) - law(Sampling(), row)).max() > 1e-3 for row in rows()
    )


def test_only_what_differs_from_the_default_is_shown() -> None:
    assert repr(Sampling()) == "Sampling()"
    assert repr(Sampling(0.0, seed=7)) == "Sampling(temperature=0.0, seed=7)"
    shown = Sampling(logit_bias={3: -1.0}, bad_words=["x"], top_k=5)
    assert repr(shown) == "Sampling(top_k=5, logit_bias={3: -1.0}, bad_words=['x'])"
    assert eval(repr(shown)) == shown


def test_presence_and_frequency_count_the_output_only() -> None:
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    for logits in rows():
        wanted = logits.copy()
        for token in set(OUTPUT):
            wanted[token] -= 0.5 + 0.25 * OUTPUT.count(token)
        wanted = np.exp(wanted - wanted.max())
        np.testing.assert_allclose(law(sampling, logits), wanted / wanted.sum(), atol=1e-14)
        np.testing.assert_allclose(law(sampling, logits, output=[]), law(Sampling(), logits))


def test_negative_infinity_in_the_bias_forbids() -> None:
    found = law(Sampling(logit_bias={5: -math.inf}, repetition_penalty=1.2), rows()[1])
    assert found[5] == 0
    assert (np.delete(found, 5) > 0).all()


GRAMMARS: list[Callable[[Any], Any]] = [
    lambda output: np.isin(np.arange(VOCAB_SIZE), (2, 5, 8)),
    lambda output: [token in (2, 5, 8) for token in range(VOCAB_SIZE)],
    lambda output: torch.tensor([2, 5, 8]),
    lambda output: np.array([8, 5, 2], dtype=np.uint8),
    lambda output: {2, 5, 8},
    lambda output: (token for token in (2, 5, 8)),
]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_grammar_may_answer_in_many_ways(grammar: Callable[[Any], Any]) -> None:
    logits = rows()[1]
    wanted = np.where(np.isin(np.arange(VOCAB_SIZE), (2, 5, 8)), np.exp(logits), 0.0)
    np.testing.assert_allclose(law(Sampling(grammar=grammar), logits), wanted / wanted.sum())


def test_a_grammar_sees_the_output() -> None:
    seen: list[list[int]] = []
    law(Sampling(grammar=lambda output: seen.append(list(output)) or range(VOCAB_SIZE)), rows()[0])
    assert seen == [OUTPUT]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([True, False], "wrong shape"),
        ([VOCAB_SIZE], "unknown tokens"),
        ([-1], "unknown tokens"),
        (None, "neither a mask nor token ids. Received None"),
        ("abc", "neither a mask nor token ids"),
        ([0.5], "neither a mask nor token ids"),
    ],
)
def test_a_wrong_answer_of_a_grammar_is_not_taken_for_another(answer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        law(Sampling(grammar=lambda output: answer), rows()[0])


def test_temperature_zero_is_the_argmax_after_bias_penalties_and_bans() -> None:
    logits = np.zeros(VOCAB_SIZE)
    logits[[9, 6, 5, 20, 21]] = 5.0, 4.9, 4.8, 4.7, 4.7
    sampling = Sampling(temperature=0.0, repetition_penalty=3.0, top_k=2, top_p=0.1)
    found = law(sampling, logits, Bans(words=((6,),)))
    assert found[20] == 1, "9 and 5 are penalised, 6 is banned, and 20 comes before 21"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiny_temperatures_are_nearly_greedy(dtype: Any) -> None:
    """1e-46 is 0 in single precision, and 0 / 0 would be no law at all."""
    for temperature in (1e-8, 1e-46, 5e-324):
        logits = rows()[1].astype(dtype)
        found = law(Sampling(temperature=temperature, top_p=0.9, min_p=0.01), logits)
        assert found[int(np.argmax(logits))] == 1


def test_ties_at_the_edge_stay_in() -> None:
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    assert (law(Sampling(top_k=2), logits) > 0).tolist() == [True, True, True, False, False]
    assert (law(Sampling(top_p=0.5), logits) > 0).tolist() == [True, True, True, False, False]


def test_a_bad_word_may_begin_in_the_prompt() -> None:
    logits = rows()[1]
    for words, output, banned in (
        (((9, 30, 11),), [], True),
        (((9, 30, 11),), [8], False),
        (((30, 8, 11),), [8], True),
        (((4, 9, 9, 30, 8, 11),), [8], True),
        (((5, 4, 9, 9, 30, 8, 11),), [8], False),
    ):
        assert (law(Sampling(), logits, Bans(words=words), output)[11] == 0) == banned


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logits_are_left_alone(dtype: Any) -> None:
    """They are a view of the model's own memory, and another slot may read them again."""
    sampling, bans, _ = SAME["everything, in transformers' order"]
    logits = rows()[1].astype(dtype)
    before = logits.copy()
    found = law_of(sampling, logits, PROMPT, OUTPUT, bans, sampling.processors)
    assert found.weights.max() == 1
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "hold NaN"), (np.inf, "hold inf"), (-np.inf, "no token")]
)
def test_a_row_without_a_law_says_why(value: float, message: str) -> None:
    logits = np.full(VOCAB_SIZE, -np.inf)
    logits[3] = value
    with pytest.raises(ValueError, match=message):
        law_of(Sampling(), logits, PROMPT, OUTPUT, Bans())


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, Fraction])
@pytest.mark.parametrize("size", [1.0, 20.01, 70_000.0])
def test_numbers_of_any_kind_leave_the_best_token(kind: Any, size: float) -> None:
    """In half precision a floor may be rounded above every score."""
    for dtype in (np.float32, np.float64):
        logits = np.array([1.0, size + 1, 3.0, 4.0], dtype)
        for min_p in (0.01, 0.5, 1.0):
            sampling = Sampling(temperature=kind(0.75), min_p=min_p, top_k=np.uint8(3))
            found = law_of(sampling, logits, [0], [], Bans())
            same = Sampling(temperature=0.75, min_p=min_p, top_k=3)
            plain = law_of(same, logits, [0], [], Bans())
            assert found.floor <= found.best
            np.testing.assert_array_equal(found.weights, plain.weights)


def test_the_hottest_temperature_is_no_fault() -> None:
    logits = np.array([-np.inf, 0.0, 5.0], np.float32)
    found = law_of(Sampling(temperature=1e300, min_p=0.1), logits, [0], [], Bans())
    assert found.weights.tolist() == [0, 1, 1]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-40, 40, width=32), min_size=2, max_size=600),
    st.floats(0.05, 5),
    st.floats(1e-3, 1),
    st.floats(0, 1),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_cuts_keep_the_likeliest_and_enough_of_them(
    values: list[float], temperature: float, top_p: float, min_p: float, top_k: int | None
) -> None:
    """What is kept is a top set in its own proportions, and no larger than needed."""
    logits = np.array(values)
    whole = law_of(Sampling(temperature=temperature), logits, [0], [], Bans()).weights
    sampling = Sampling(temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k)
    found = law_of(sampling, logits, [0], [], Bans()).weights
    kept = found > 0
    np.testing.assert_array_equal(found[kept], whole[kept])
    left_out = logits[~kept & (whole > 0)]
    assert logits[kept].min() > left_out.max(initial=-np.inf)
    if top_k is None and min_p == 0:
        mass = whole / whole.sum()
        assert mass[kept].sum() >= top_p - 1e-9
        without_last = mass[kept & (logits > logits[kept].min())].sum()
        assert without_last < top_p + 1e-9
    assert (found[kept] >= min_p * (1 - 1e-12)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature is out of range. Received -0.1"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, r"top_p is out of range. Received 0.0. Use a number in \(0, 1\]"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": math.inf}, "repetition_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"logit_bias": {3: math.inf}}, "logit_bias"),
        ({"logit_bias": {3: math.nan}}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"n": 0}, "n is out of range"),
        ({"n": 1.5}, "n has a wrong type"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"bad_words": [[]]}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temperature": "1"},
            r"temperature has a wrong type. Received the str '1'. Pass a number",
        ),
        ({"temperature": None}, "temperature has a wrong type. Received the NoneType None"),
        ({"top_k": "5"}, r"top_k has a wrong type. Received the str '5'. Pass a whole number"),
        ({"top_p": [0.9]}, "top_p has a wrong type. Received the list"),
        ({"min_p": "0"}, "min_p has a wrong type"),
        ({"repetition_penalty": "1"}, "repetition_penalty has a wrong type"),
        ({"presence_penalty": "0"}, "presence_penalty has a wrong type"),
        ({"frequency_penalty": None}, "frequency_penalty has a wrong type"),
        ({"logit_bias": [(3, 1.0)]}, "logit_bias has a wrong type. Received the list"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias has a wrong type. Received the str '3'"),
        ({"logit_bias": {3: "1"}}, "logit_bias has a wrong type. Received the str '1'"),
        ({"bad_words": "dog"}, "bad_words has a wrong type. Received the str 'dog'. Pass a list"),
        ({"bad_words": [3]}, "bad_words has a wrong type. Received the int 3"),
        ({"processors": len}, "processors has a wrong type"),
        ({"min_tokens": "3"}, "min_tokens has a wrong type"),
        ({"grammar": "json"}, "grammar has a wrong type. Received the str 'json'"),
        ({"n": "2"}, "n has a wrong type"),
        ({"seed": "7"}, "seed has a wrong type"),
    ],
)
def test_options_of_a_wrong_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**options)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    Sampling(top_k=np.int64(3), n=np.int32(2), seed=np.uint64(2**63), min_tokens=np.int64(0))  # type: ignore[arg-type]
    Sampling(temperature=np.float32(0.5), top_p=np.float64(0.9), logit_bias={np.int64(3): 1})  # type: ignore[arg-type]
