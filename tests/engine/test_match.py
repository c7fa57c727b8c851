"""Under `match` speculation cannot be seen in the text: plain and speculative are the same.

Every sampling option, every kind of drafter, several draft lengths.  In float64, so that no
difference can hide behind rounding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import array_api_compat as compat
import numpy as np
import pytest
from drafting import Random, noisy_copy, recalling, tiny_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from processors import CallCounter, Toggle
from tiny_models import VOCAB_SIZE, Architecture, fresh_logits
from transformers import NoRepeatNGramLogitsProcessor, TypicalLogitsWarper

import forerun as fr
from forerun import Sampling
from forerun.models import TableModel
from forerun.noise.race import race, seed_key
from forerun.sampling.options import Bans, law

PROMPTS = [[5, 9, 33, 9], [8, 1, 8, 1, 8, 1, 8], [60]]
LENGTHS = (1, 6)


def grammar(output: Any) -> Any:
    """Sums must stay close to a multiple of 5: what is allowed depends on the whole output."""
    return (np.arange(VOCAB_SIZE) + sum(output)) % 5 < 2


OPTIONS: dict[str, Sampling] = {
    "greedy": Sampling(temperature=0.0),
    "plain": Sampling(),
    "hot": Sampling(temperature=1.7),
    "cold": Sampling(temperature=0.3),
    "top_k": Sampling(top_k=3),
    "top_p": Sampling(top_p=0.7),
    "min_p": Sampling(min_p=0.2),
    "repetition_penalty": Sampling(repetition_penalty=1.8),
    "presence_penalty": Sampling(presence_penalty=1.5),
    "frequency_penalty": Sampling(frequency_penalty=2.0),
    "greedy with penalties": Sampling(
        temperature=0.0, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=1.0
    ),
    "logit_bias": Sampling(logit_bias={3: 4.0, 9: -np.inf}),
    "bad words": Sampling(bad_words=[[9], [8, 1], [1, 8], [12, 40, 3]]),
    "min_tokens": Sampling(min_tokens=12, logit_bias={7: 3.0}),
    "a processor": Sampling(processors=[NoRepeatNGramLogitsProcessor(2), TypicalLogitsWarper(0.8)]),
    "a processor that counts its calls": Sampling(processors=[CallCounter()]),
    "a processor with a memory of the text": Sampling(processors=[Toggle(), CallCounter()]),
    "grammar": Sampling(grammar=grammar),
    "samples": Sampling(n=3),
    "everything": Sampling(
        temperature=0.9,
        top_k=30,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={3: 1.0},
        bad_words=[[9], [8, 1]],
        min_tokens=5,
        processors=[CallCounter(), Toggle()],
        grammar=grammar,
        n=2,
    ),
}


def flat(answers: Any) -> list[fr.Generation]:
    return [
        each for answer in answers for each in (answer if isinstance(answer, list) else [answer])
    ]


def shown(answers: Any) -> list[Any]:
    return [(each.tokens, each.finish_reason) for each in flat(answers)]


def logprobs(answers: Any) -> list[list[float]]:
    """They come from passes of other shapes, so equal ones may differ in the last digits."""
    return [[each.logprob for each in answer.logprobs or ()] for answer in flat(answers)]


ALONE = "greedy", "plain", "greedy with penalties", "a processor", "samples", "everything"
"""By default; "everything" has what the others have, and `test_any_options_at_all` mixes them."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ALONE else pytest.mark.slow) for name in OPTIONS],
)
def test_every_option_and_every_drafter(name: str) -> None:
    target, model_drafter = tiny_pair()
    sampling = [replace(OPTIONS[name], seed=seed) for seed in (1, 2, 3)]
    how: dict[str, Any] = {
        "sampling": sampling, "max_new_tokens": 12, "stop_tokens": (7,), "logprobs": 2,
    }  # fmt: skip
    plain = fr.generate(target, PROMPTS, drafter=None, **how)
    known = recalling(*flat(plain), mistakes=0.3, vocab_size=VOCAB_SIZE)
    accepted = refused = 0
    for drafter, draft_length in (
        (fr.drafters.NGram(), "auto"), (model_drafter, 1), (model_drafter, 6), (Random(), 4),
        (known, 7),
    ):  # fmt: skip
        found = fr.generate(target, PROMPTS, drafter=drafter, draft_length=draft_length, **how)
        assert shown(found) == shown(plain), f"{drafter.name}, K = {draft_length}"
        np.testing.assert_allclose(
            np.concatenate(logprobs(found)), np.concatenate(logprobs(plain)), atol=1e-9
        )
        assert all(not answer.stats.notes for answer in flat(found))
        accepted += sum(answer.stats.accepted for answer in flat(found))
        refused += sum(answer.fates.count(fr.Fate.CORRECTION) for answer in flat(found))
    assert accepted >= 20
    assert refused >= 20


def test_options_change_the_text() -> None:
    """Were an option ignored by both sides, the test above would not know."""
    target, _ = tiny_pair()
    answers: Any = fr.generate(
        target, PROMPTS * len(OPTIONS), drafter=None, max_new_tokens=20, stop_tokens=(7,),
        sampling=[replace(each, seed=1) for each in OPTIONS.values() for _ in PROMPTS],
    )  # fmt: skip
    texts = {
        name: [answer.tokens for answer in flat(answers[3 * i : 3 * i + 3])]
        for i, name in enumerate(OPTIONS)
    }
    assert [name for name in OPTIONS if texts[name] == texts["plain"]] == ["plain"]


def test_plain_text_is_the_race_of_each_position() -> None:
    """Written out by hand, against models without a cache and noise addressed by position."""
    target, _ = tiny_pair()
    sampling = Sampling(seed=2**63 + 5, temperature=0.8, top_p=0.9, repetition_penalty=1.3)
    xp = compat.array_namespace(np.empty(0))
    key = seed_key(xp, [2**63 + 5], None)
    for prompt in PROMPTS:
        output: list[int] = []
        for position in range(12):
            logits = fresh_logits(target.model, [*prompt, *output])[-1].numpy()  # type: ignore[attr-defined]
            weights = law(sampling, logits, prompt, output, Bans()).weights
            output += [int(race(xp, weights[None], key, np.array([position]))[0])]
        assert (
            fr.generate(target, prompt, drafter=None, sampling=sampling, max_new_tokens=12).tokens
            == output
        )


def test_requests_of_one_batch_may_differ_in_everything() -> None:
    target, drafter = tiny_pair()
    sampling = [replace(each, seed=7 * i) for i, each in enumerate(OPTIONS.values())]
    prompts = [PROMPTS[i % 3] for i in range(len(sampling))]
    limits = [3 + i % 10 for i in range(len(sampling))]
    alone = [
        fr.generate(target, [prompt], drafter=None, sampling=each, max_new_tokens=limit)
        for prompt, each, limit in zip(prompts, sampling, limits, strict=True)
    ]
    for draft_length in (1, 7):
        together = fr.generate(
            target, prompts, drafter=drafter, draft_length=draft_length, sampling=sampling,
            max_new_tokens=limits, batch_size=5,
        )  # fmt: skip
        assert shown(together) == shown([answer for group in alone for answer in group])


def test_seeds_matter_and_repeat() -> None:
    target, drafter = tiny_pair()

    def text(seed: int) -> list[int]:
        sampling = Sampling(seed=seed)
        return fr.generate(
            target, [5, 9], drafter=drafter, sampling=sampling, max_new_tokens=8
        ).tokens

    seeds = [0, 1, 2**32, 2**63, 2**64 - 1]
    assert [text(seed) for seed in seeds] == [text(seed) for seed in seeds]
    assert len({tuple(text(seed)) for seed in seeds}) == len(seeds)


def test_a_reported_seed_gives_the_text_again() -> None:
    """Also those of the samples after the first, and seeds nobody chose."""
    target, drafter = tiny_pair()
    answers = fr.generate(target, [5, 9], drafter=None, sampling=Sampling(n=3), max_new_tokens=12)
    assert len({tuple(answer.tokens) for answer in answers}) == 3
    for answer in answers:
        sampling = Sampling(seed=answer.seed)
        again = fr.generate(target, [5, 9], drafter=drafter, sampling=sampling, max_new_tokens=12)
        assert again.tokens == answer.tokens


def test_processors_of_the_caller_are_not_used_up() -> None:
    target, drafter = tiny_pair()
    processor = CallCounter()
    sampling = Sampling(seed=1, processors=[processor])
    first = fr.generate(target, PROMPTS, drafter=drafter, sampling=sampling, max_new_tokens=9)
    again = fr.generate(target, PROMPTS, drafter=drafter, sampling=sampling, max_new_tokens=9)
    assert shown(first) == shown(again)
    assert processor.calls == 0


@pytest.mark.filterwarnings("ignore:RecurrentGemma")
@pytest.mark.parametrize("kind", ["mamba2", "lfm2", "recurrent_gemma", "gemma3_text"])
def test_other_ways_of_keeping_rows(kind: str) -> None:
    """Snapshot, replay and recompute under sampling; the strategies' own tests are elsewhere."""
    from architectures import ATTENTION, RECURRENT

    model = next(each for each in (*ATTENTION, *RECURRENT) if each.kind == kind).build()
    target, drafter = fr.wrap(model), fr.drafters.Model(noisy_copy(model, 0.1))
    sampling = Sampling(seed=3, repetition_penalty=1.2, top_p=0.9)
    plain = fr.generate(target, PROMPTS, drafter=None, sampling=sampling, max_new_tokens=12)
    for draft_length in LENGTHS:
        found = fr.generate(
            target, PROMPTS, drafter=drafter, draft_length=draft_length, sampling=sampling,
            max_new_tokens=12,
        )  # fmt: skip
        assert shown(found) == shown(plain)


TABLE = TableModel.random(vocab_size=5, order=2, seed=3, zeros=0.2)
OTHER = TableModel.random(vocab_size=5, order=1, seed=4)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_options_at_all(data: Any) -> None:
    """Options in any combination, on a model where some tokens are impossible."""
    draw = data.draw
    sampling = [
        Sampling(
            temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
            top_k=draw(st.sampled_from([None, 1, 3])),
            top_p=draw(st.sampled_from([1.0, 0.9, 0.3])),
            min_p=draw(st.sampled_from([0.0, 0.3])),
            repetition_penalty=draw(st.sampled_from([1.0, 1.5, 0.7])),
            presence_penalty=draw(st.sampled_from([0.0, 1.0])),
            frequency_penalty=draw(st.sampled_from([0.0, 0.5, -0.5])),
            logit_bias=draw(st.sampled_from([{}, {1: 2.0}, {2: -1.0}])),
            bad_words=draw(st.sampled_from([(), [[0, 1]], [[3], [1, 2, 1]]])),
            min_tokens=draw(st.sampled_from([0, 4])),
            processors=draw(st.sampled_from([(), [CallCounter()]])),
            n=draw(st.integers(1, 2)),
            seed=draw(st.integers(0, 2**64 - 1)),
        )
        for _ in range(3)
    ]
    how: dict[str, Any] = {
        "sampling": sampling,
        "max_new_tokens": draw(st.lists(st.integers(1, 12), min_size=3, max_size=3)),
        "stop_tokens": draw(st.sampled_from([(), (4,), (0, 4)])),
        "logprobs": draw(st.sampled_from([None, 0, 3])),
    }
    prompts = [[0], [1, 2, 3], [3, 1]]
    plain = fr.generate(TABLE, prompts, drafter=None, **how)
    drafter = draw(
        st.sampled_from([
            fr.drafters.NGram(), fr.drafters.NGram(max_n=5, min_n=2), fr.drafters.Model(OTHER),
            fr.drafters.Model(TABLE), fr.drafters.Model(OTHER, temperature=0.0), Random(5),
        ])
    )  # fmt: skip
    found = fr.generate(
        TABLE, prompts, drafter=drafter, draft_length=draw(st.integers(0, 8)),
        batch_size=draw(st.integers(1, 4)), **how,
    )  # fmt: skip
    assert shown(found) == shown(plain)


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_greedy_is_greedy_under_every_lossless_rule(rule: str) -> None:
    """The law is a point mass, so the law-only rules have no choice either."""
    target, model_drafter = tiny_pair()
    sampling = Sampling(temperature=0.0, repetition_penalty=1.3)
    how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 16}
    plain = fr.generate(target, PROMPTS, drafter=None, **how)
    warm = fr.drafters.Model(model_drafter.model, temperature=0.8)  # type: ignore[attr-defined]
    for drafter in (fr.drafters.NGram(), model_drafter, warm, Random()):
        found = fr.generate(target, PROMPTS, drafter=drafter, rule=rule, **how)
        assert shown(found) == shown(plain)


def test_an_equal_drafter_is_always_right() -> None:
    """Under shared noise equal models agree on every sampled token, so a round gives K + 1."""
    model = Architecture("llama", "crop").build()
    target = fr.wrap(model)
    answer = fr.generate(
        target, PROMPTS[0], drafter=fr.drafters.Model(model), draft_length=4,
        sampling=Sampling(seed=5, temperature=1.3, top_p=0.9), max_new_tokens=25,
    )  # fmt: skip
    assert answer.stats.rounds == 5
    assert answer.stats.acceptance_rate == 1
