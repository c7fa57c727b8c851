"""One request never ends another, whatever its processors, grammar or tokens do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hostile
import numpy as np
import pytest
from hostile import EXITS, MASKS, RAISED, WRONG_ROWS, raising

import forerun as fr
from cases import for_all
from forerun.models import TableModel
from forerun.sampling.options import Bans, law

V = 7
PROMPTS = [[1, 2], [3, 4]]


def target(bad: int | None = None, make: Callable[[], BaseException] = RAISED[0]) -> Any:
    table = TableModel.random(vocab_size=V, order=2, seed=0)
    table.tokenizer = hostile.Tokenizer(bad, make)  # type: ignore[attr-defined]
    return table


HEALTHY = fr.Sampling(seed=5, repetition_penalty=1.2)
ALONE = fr.generate(target(), PROMPTS[0], drafter=None, sampling=HEALTHY, max_new_tokens=12)


def beside(sampling: fr.Sampling, model: Any = None, **how: Any) -> fr.GenerationError:
    """How a request fails beside a healthy one, which must get the text it gets alone, for another
    owner and in the same engine, which must go on after it."""

    async def main() -> fr.GenerationError:
        async with fr.AsyncEngine(model or target(), drafter="suffix") as engine:
            ours = engine.submit(PROMPTS[0], sampling=HEALTHY, max_new_tokens=12, owner="a")
            theirs = engine.submit(
                PROMPTS[1], sampling=sampling, max_new_tokens=12, owner="b", **how
            )
            with pytest.raises(fr.GenerationError) as caught:
                await theirs
            later = engine.submit(PROMPTS[0], sampling=HEALTHY, max_new_tokens=12, owner="c")
            assert [(await one).tokens for one in (ours, later)] == [ALONE.tokens] * 2
            assert engine.failure is None
            return caught.value

    return asyncio.run(asyncio.wait_for(main(), 20))


def processing(wrong: Callable[[Any], Any], **options: Any) -> fr.Sampling:
    return fr.Sampling(seed=3, processors=[hostile.Processor(wrong, begins=4)], **options)


@for_all("name", WRONG_ROWS)
def test_a_processor_that_returns_no_scores_ends_its_request_alone(name: str) -> None:
    failure = beside(processing(WRONG_ROWS[name]))
    assert len(failure.results.tokens) == 2
    assert "model is broken" not in str(failure)
    if name == "longer":
        assert "Processor returned scores of a wrong shape. Received [1, 14]" in str(failure)
    if name == "shorter":
        assert "Its scores must be of shape [1, 7], finite or -inf." in str(failure)
    if name == "inf":
        assert "Processor returned scores that are no numbers in torch.float64" in str(failure)


def test_a_processor_may_not_leave_the_range_of_the_logits() -> None:
    logits = np.zeros(V, np.float32)
    for added, is_fine in ((1e300, False), (1e38, True)):
        processor = hostile.Processor(lambda scores, added=added: scores.double() + added)
        if is_fine:
            assert law(fr.Sampling(), logits, [1], [], Bans(), [processor]).best == np.float32(1e38)
            continue
        with pytest.raises(fr.InputError, match=r"no numbers in torch\.float32"):
            law(fr.Sampling(), logits, [1], [], Bans(), [processor])


@for_all("make", [*RAISED, *EXITS])
def test_whatever_a_processor_raises_ends_its_request_alone(make: Any) -> None:
    failure = beside(processing(raising(make)))
    assert "raised by a processor or a grammar" in str(failure)
    assert len(failure.results.tokens) == 2
    assert type(failure.__cause__) is type(make())


@for_all("make", RAISED)
def test_in_the_main_thread_too(make: Any) -> None:
    ours, theirs = fr.generate(
        target(), PROMPTS, sampling=[HEALTHY, processing(raising(make))], max_new_tokens=12,
        errors="return",
    )  # fmt: skip
    assert ours.tokens == ALONE.tokens
    assert theirs.finish_reason == "error"


@for_all("make", EXITS)
def test_but_there_an_exit_is_an_exit(make: Any) -> None:
    with pytest.raises(type(make())):
        fr.generate(target(), [1, 2], sampling=processing(raising(make)), errors="return")


def test_a_processor_that_cannot_be_copied_any_more() -> None:
    assert "copied too often" in str(
        beside(fr.Sampling(seed=3, processors=[hostile.Uncopiable(7)]))
    )


@for_all("name", MASKS)
def test_a_grammar_that_returns_no_mask_ends_its_request_alone(name: str) -> None:
    beside(fr.Sampling(seed=3, grammar=hostile.Grammar(MASKS[name], 3, "mask")))


@for_all("where", ["mask", "accept", "matcher"])
@for_all("make", [*RAISED, *EXITS])
def test_whatever_a_grammar_raises_ends_its_request_alone(make: Any, where: str) -> None:
    beside(fr.Sampling(seed=3, grammar=hostile.Grammar(raising(make), 3, where)))


@for_all("make", [*RAISED, *EXITS])
def test_what_a_grammar_says_is_forced_is_a_guess(make: Any) -> None:
    """A matcher that cannot say what is forced changes no text, also when it panics."""
    free = fr.Sampling(seed=3)
    broken = fr.Sampling(seed=3, grammar=hostile.Grammar(raising(make), 2, "forced"))

    async def main(sampling: fr.Sampling) -> fr.Generation:
        async with fr.AsyncEngine(target(), drafter="suffix") as engine:
            return await engine.submit([1, 2], sampling=sampling, max_new_tokens=12)

    assert asyncio.run(main(broken)).tokens == asyncio.run(main(free)).tokens


@for_all("make", [*RAISED, *EXITS])
def test_a_token_that_cannot_be_decoded_ends_its_request_alone(make: Any) -> None:
    bad = next(token for token in range(V) if token not in ALONE.tokens)
    forcing = fr.Sampling(seed=3, logit_bias={bad: 50.0})
    failure = beside(forcing, target(bad, make), logprobs=2)
    assert "at output position 0" in str(failure)
    assert (failure.results.tokens, failure.results.logprobs) == ([], [])


def test_a_tokenizer_is_not_asked_again_for_what_it_has_decoded() -> None:
    """Showing the last token must not be the moment at which everybody's engine ends."""
    model = target()
    left = [30]

    def decode(tokens: Any, skip_special_tokens: bool = False) -> str:
        left[0] -= 1
        if left[0] < 0:
            raise KeyError("too often")
        return "a" * len(tokens)

    model.tokenizer.decode = decode

    async def main() -> None:
        async with fr.AsyncEngine(model, drafter=None) as engine:
            for _ in range(20):
                with pytest.raises(fr.GenerationError, match="too often"):
                    await engine.submit([1, 2], sampling=HEALTHY, max_new_tokens=50)
                assert engine.failure is None
                left[0] = 30

    asyncio.run(main())


@for_all(
    "options",
    [
        {"logit_bias": {1: 1e308}},
        {"logit_bias": {1: float("inf")}},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: 10**400}},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": float("nan")},
        {"presence_penalty": 1e308},
        {"presence_penalty": 10**400},
        {"frequency_penalty": -float("inf")},
        {"temperature": 10**400},
        {"temperature": float("nan")},
        {"top_k": 10**400},
        {"top_p": float("nan")},
        {"min_p": 10**400},
        {"min_tokens": 10**5000},
        {"n": 10**400},
        {"seed": 10**5000},
    ],
)
def test_options_without_meaning_are_refused_when_they_are_made(options: Any) -> None:
    with pytest.raises(fr.InputError, match="out of range"):
        fr.Sampling(**options)


def test_the_largest_options_leave_logits_finite() -> None:
    """In float32, whose largest number is 3e38, for all of them at once."""
    logits = np.array([50.0, -50.0, 0.0, 1.0], np.float32)
    for penalty in (1e-4, 1e4):
        for sign in (1e30, -1e30):
            sampling = fr.Sampling(
                seed=1, logit_bias={0: sign, 1: -sign}, repetition_penalty=penalty,
                presence_penalty=sign, frequency_penalty=-sign, temperature=1e-300,
            )  # fmt: skip
            made = law(sampling, logits, [0, 1], [2, 2, 0] * 1000, Bans())
            assert np.isfinite(made.scores).all()
            assert np.isfinite(made.weights).all()


def test_a_model_is_blamed_for_its_own_logits_only() -> None:
    for broken, options in ((np.nan, {}), (np.inf, {}), (np.nan, {"logit_bias": {0: 5.0}})):
        logits = np.array([1.0, broken, 2.0])
        processor = hostile.Processor(raising(RAISED[0]))
        with pytest.raises(ValueError, match="the model is broken"):
            law(fr.Sampling(**options), logits, [1], [], Bans(), [processor])
    logits, bias = np.array([1.0, 3e38], np.float32), {1: 1e30}
    penalised = fr.Sampling(logit_bias=bias, repetition_penalty=0.5)
    with pytest.raises(ValueError, match="a bias or a penalty takes logits past what float32"):
        law(penalised, logits, [1], [], Bans())


def test_a_bias_that_changes_while_a_request_is_answered_is_no_concern_of_its() -> None:
    bias = {1: 2.0}
    sampling = fr.Sampling(seed=1, logit_bias=bias)
    stream = fr.stream(target(), [1, 2], sampling=sampling, max_new_tokens=9, drafter=None)
    next(stream)
    bias[10**6] = float("nan")
    list(stream)
    bias.pop(10**6)
    again = fr.generate(target(), [1, 2], sampling=sampling, max_new_tokens=9, drafter=None)
    assert stream.results().tokens == again.tokens


@for_all(
    "options",
    [
        {"timeout": "5"},
        {"timeout": 10**400},
        {"timeout": 10**5000},
        {"timeout": float("nan")},
        {"timeout": [1]},
        {"draft_length": 10**400},
        {"logprobs": 10**5000},
        {"max_new_tokens": 10**400},
        {"resume": [10**5000]},
        {"stop": [10**5000]},
        {"sampling": None},
        {"sampling": fr.Sampling(logit_bias={10**5000: 1.0})},
    ],
)
def test_arguments_of_a_request_are_refused_in_words(options: Any) -> None:
    async def main() -> None:
        async with fr.AsyncEngine(target(), drafter=None) as engine:
            with pytest.raises(fr.InputError, match="Received"):
                engine.submit([1, 2], **options)

    asyncio.run(main())


@for_all(
    "options",
    [
        {"max_batch": None},
        {"max_batch": 10**400},
        {"max_waiting": None},
        {"slowdown": None},
        {"slowdown": 0.5},
        {"slowdown": float("nan")},
    ],
)
def test_arguments_of_an_engine_are_refused_in_words(options: Any) -> None:
    with pytest.raises(fr.InputError, match="Received"):
        fr.AsyncEngine(target(), **options)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_drafter_that_panics_costs_its_drafts() -> None:
    for seed in range(20):
        drafter = hostile.Drafter(seed, V)
        out = fr.generate(
            target(), PROMPTS[0], drafter=drafter, sampling=HEALTHY, max_new_tokens=12
        )
        assert out.tokens == ALONE.tokens
