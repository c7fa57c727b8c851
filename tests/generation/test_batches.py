"""A request's text does not depend on its company: batches, slots, rows used again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from drafting import Random, noisy_copy, tiny_pair
from tiny_models import VOCAB_SIZE, Architecture, random_tokens

import forerun as fr
from forerun import Sampling, rules
from forerun.drafters import Model, NGram
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.generation.intake import make_request
from forerun.models import TableModel


def requests(count: int, seed: int) -> tuple[list[list[int]], list[Sampling], list[int]]:
    generator = random.Random(seed)
    prompts = [random_tokens(generator, generator.choice((1, 3, 8, 30))) for _ in range(count)]
    samplings = [Sampling(seed=generator.getrandbits(64)) for _ in range(count)]
    return prompts, samplings, [generator.choice((1, 4, 9, 14)) for _ in range(count)]


def texts(answers: Any) -> list[Any]:
    return [(answer.tokens, answer.finish_reason) for answer in answers]


@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_a_request_alone_and_in_a_batch(rule: str) -> None:
    """Under the law-only rules too: noise is addressed by the request, and so is each K."""
    target, drafter = tiny_pair()
    prompts, samplings, limits = requests(9, seed=1)
    how: dict[str, Any] = {"drafter": drafter, "rule": rule, "draft_length": 4, "stop_tokens": [7]}
    alone = [
        fr.generate(target, prompt, sampling=sampling, max_new_tokens=limit, **how)
        for prompt, sampling, limit in zip(prompts, samplings, limits, strict=True)
    ]
    for batch_size in (2, 4, 9):
        together = fr.generate(
            target, prompts, sampling=samplings, max_new_tokens=limits, batch_size=batch_size, **how
        )
        assert texts(together) == texts(alone)
        assert [a.stats.accepted for a in together] == [a.stats.accepted for a in alone]
    assert sum(answer.stats.accepted for answer in alone) >= 10


@pytest.mark.parametrize("drafter", [None, NGram(), Random()], ids=["none", "ngram", "random"])
def test_more_prompts_than_slots(drafter: Any) -> None:
    target, _ = tiny_pair()
    prompts, samplings, limits = requests(12, seed=2)
    how: dict[str, Any] = {"sampling": samplings, "max_new_tokens": limits, "draft_length": 3}
    wanted = fr.generate(target, prompts, drafter=None, batch_size=12, **how)
    for batch_size in (1, 3):
        found = fr.generate(target, prompts, batch_size=batch_size, drafter=drafter, **how)
        assert texts(found) == texts(wanted)


def test_requests_that_come_while_others_are_under_way() -> None:
    """The engine as a server uses it: submitted between rounds, into rows others have left."""
    target, drafter = tiny_pair()
    prompts, samplings, limits = requests(10, seed=3)
    alone = [
        fr.generate(target, prompt, drafter=None, sampling=sampling, max_new_tokens=limit)
        for prompt, sampling, limit in zip(prompts, samplings, limits, strict=True)
    ]
    engine = Engine(
        target, drafter=drafter, draft_length=3, rule=rules.get("match"), num_rows=3, capacity=64
    )
    made = [
        make_request(target, prompt, AnswerOptions(sampling, max_new_tokens=limit))
        for prompt, sampling, limit in zip(prompts, samplings, limits, strict=True)
    ]
    used = set()
    for request in made:
        engine.submit(request)
        used |= {row for row, other in enumerate(engine._seats.occupants) if other is not None}
        engine.step()
    while engine.busy:
        engine.step()
    assert used == {0, 1, 2}
    assert texts([request.generation() for request in made]) == texts(alone)


def test_a_cancelled_engine_can_be_used_again() -> None:
    target, drafter = tiny_pair()
    engine = Engine(
        target, drafter=drafter, draft_length=3, rule=rules.get("match"), num_rows=2, capacity=64
    )
    sampling = Sampling(seed=8)
    for _ in range(3):
        engine.submit(
            make_request(target, [5, 5, 9, 30], AnswerOptions(Sampling(seed=1), max_new_tokens=30))
        )
    engine.step()
    engine.close()
    assert not engine.busy
    request = make_request(target, [4, 4], AnswerOptions(sampling, max_new_tokens=9))
    engine.submit(request)
    while engine.busy:
        engine.step()
    wanted = fr.generate(target, [4, 4], drafter=None, sampling=sampling, max_new_tokens=9)
    assert request.generation().tokens == wanted.tokens


def test_very_long_and_very_short_prompts_together() -> None:
    model = Architecture("mistral", "crop", {"sliding_window": 5, "max_position_embeddings": 2048})
    built = model.build()
    target, drafter = fr.wrap(built), Model(noisy_copy(built, 0.1))
    generator = random.Random(4)
    prompts = [random_tokens(generator, count) for count in (1, 900, 3, 1200)]
    sampling = Sampling(seed=6)
    alone = [
        fr.generate(target, p, drafter=None, sampling=sampling, max_new_tokens=8) for p in prompts
    ]
    together = fr.generate(target, prompts, drafter=drafter, sampling=sampling, max_new_tokens=8)
    assert texts(together) == texts(alone)


@pytest.mark.parametrize(
    "same",
    [
        [5, 9, 33],
        (5, 9, 33),
        np.array([5, 9, 33]),
        np.array([5, 9, 33], dtype=np.uint8),
        [np.int64(5), np.int32(9), np.uint8(33)],
        torch.tensor([5, 9, 33]),
        torch.tensor([5, 9, 33], dtype=torch.int32),
        range(5, 34, 14),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_ways_to_give_token_ids(same: Any) -> None:
    target, _ = tiny_pair()
    wanted = fr.generate(target, [int(token) for token in same], drafter=None, max_new_tokens=4)
    found = fr.generate(target, same, drafter=None, max_new_tokens=4)
    assert isinstance(found, fr.Generation)
    assert found.tokens == wanted.tokens
    assert all(type(token) is int for token in found.prompt_tokens + found.tokens)
    (listed,) = fr.generate(target, [same], drafter=None, max_new_tokens=4)
    assert listed.tokens == wanted.tokens


def test_shapes_of_the_answer() -> None:
    """One prompt, a list of one, a table of ids, samples of one and of many."""
    target, _ = tiny_pair()
    how: dict[str, Any] = {"max_new_tokens": 3}
    assert isinstance(fr.generate(target, [5, 9], drafter=None, **how), fr.Generation)
    assert len(fr.generate(target, [[5, 9]], drafter=None, **how)) == 1
    assert len(fr.generate(target, torch.tensor([[5, 9], [3, 1]]), drafter=None, **how)) == 2
    assert len(fr.generate(target, np.array([[5, 9]]), drafter=None, **how)) == 1
    samples = fr.generate(target, [5, 9], drafter=None, sampling=Sampling(n=3), **how)
    assert [type(answer) for answer in samples] == [fr.Generation] * 3
    table = fr.generate(
        target, [[5], [6]], drafter=None, sampling=[Sampling(n=2), Sampling(n=1)], **how
    )
    assert [isinstance(group, list) for group in table] == [True, False]
    assert [answer.prompt_tokens for answer in (*table[0], table[1])] == [[5], [5], [6]]


def test_a_function_is_a_target() -> None:
    """As the write-ups have it: ids to probabilities, here through every rule."""
    table = TableModel.random(vocab_size=5, order=2, seed=1)

    def target(ids: Any) -> Any:
        return np.array([table.probs(ids[: end + 1]) for end in range(len(ids))])

    sampling = Sampling(seed=3)
    wanted = fr.generate(table, [1, 2], drafter=None, sampling=sampling, max_new_tokens=20)
    found = fr.generate(target, [1, 2], drafter=NGram(), sampling=sampling, max_new_tokens=20)
    assert found.tokens == wanted.tokens


def test_the_random_prompts_are_ragged() -> None:
    prompts, _, limits = requests(9, seed=1)
    assert len({len(prompt) for prompt in prompts}) > 2
    assert len(set(limits)) > 2
    assert max(max(prompt) for prompt in prompts) < VOCAB_SIZE
