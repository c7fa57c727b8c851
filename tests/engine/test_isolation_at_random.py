"""Healthy requests among random hostile ones, in one engine: each gets the text it gets alone.

A seed makes the target's tokenizer, the drafter and a queue of events: a healthy request comes, a
hostile one comes, one is aborted, the engine is left alone for a while.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import hostile
import numpy as np
import pytest
from automata import Sums
from hostile import EXITS, MASKS, RAISED, WRONG_ROWS, raising
from processors import CallCounter, Toggle

import forerun as fr
from cases import for_all
from forerun.models import TableModel

V, UNDECODABLE, LENGTH = 11, 10, 14
NUM_HEALTHY = 24


def target(make: Any = None) -> Any:
    """A table whose last token cannot be decoded; healthy requests forbid it."""
    model = TableModel.random(vocab_size=V, order=2, seed=3)
    model.tokenizer = hostile.Tokenizer(UNDECODABLE, make or RAISED[0])  # type: ignore[attr-defined]
    return model


@cache
def healthy(number: int) -> tuple[list[int], dict[str, Any], fr.Generation]:
    """A prompt, options of all kinds, and the answer that they get alone and undrafted."""
    rng = np.random.default_rng([7, number])
    options: dict[str, Any] = {"temperature": float(rng.choice([0.0, 0.7, 1.3]))}
    processors = [[], [], [CallCounter()], [Toggle()], [CallCounter(), Toggle()]][number % 5]
    if number % 3 == 0:
        allowed = tuple(tuple(rng.permutation(V - 1)[:5].tolist()) for _ in range(3))
        options["grammar"], processors = Sums(allowed), []
    if number % 4 == 1:
        options |= {"repetition_penalty": 1.3, "presence_penalty": 0.4, "top_k": 6}
    sampling = fr.Sampling(
        seed=number, logit_bias={UNDECODABLE: -float("inf")}, processors=processors, **options
    )
    prompt = rng.integers(V - 1, size=3).tolist()
    how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": LENGTH}
    if number % 2:
        how |= {"logprobs": 2, "logprobs_of": "sampling", "stop": ["ab", "cc"]}
    return prompt, how, fr.generate(target(), prompt, drafter=None, **how)


def hostile_sampling(rng: np.random.Generator) -> fr.Sampling:
    """Options with a processor, a grammar or a bias that goes wrong somewhere in the text."""
    begins = int(rng.integers(LENGTH))
    wrong: Any = raising([*RAISED, *EXITS][rng.integers(len(RAISED) + len(EXITS))])
    kind, shared = rng.integers(6), {"seed": int(rng.integers(99)), "temperature": 0.9}
    if kind == 0:
        names = list(WRONG_ROWS)
        wrong = WRONG_ROWS[names[rng.integers(len(names))]]
    if kind <= 1:
        processor: Any = hostile.Processor(wrong, begins + 3)
        return fr.Sampling(processors=[processor, Toggle()], **shared)
    if kind == 2:
        odd = [hostile.Uncopiable(2 * begins + 3), hostile.Keeping()]
        return fr.Sampling(processors=odd[: rng.integers(1, 3)], **shared)
    if kind == 3:
        return fr.Sampling(logit_bias={UNDECODABLE: float(rng.integers(9))}, **shared)
    if kind == 4:
        names = list(MASKS)
        mask = MASKS[names[rng.integers(len(names))]]
        return fr.Sampling(grammar=hostile.Grammar(mask, begins + 1, "mask"), **shared)
    where = ["mask", "accept", "rollback", "forced", "matcher"][rng.integers(5)]
    return fr.Sampling(grammar=hostile.Grammar(wrong, begins + 1, where), **shared)


async def act(engine: fr.AsyncEngine, rng: np.random.Generator, num_events: int) -> int:
    """Random events, then the answers; how many hostile requests failed."""
    ours: list[tuple[int, Any]] = []
    theirs: list[Any] = []
    for _ in range(num_events):
        event = rng.integers(8)
        if event < 3:
            number = int(rng.integers(NUM_HEALTHY))
            prompt, how, _ = healthy(number)
            owner = "abc"[rng.integers(3)]
            ours.append((number, engine.submit(prompt, owner=owner, **how)))
        elif event < 6:
            theirs.append(
                engine.submit(
                    rng.integers(V - 1, size=3).tolist(),
                    sampling=hostile_sampling(rng),
                    max_new_tokens=LENGTH,
                    owner="abc"[rng.integers(3)],
                    logprobs=[None, 1][rng.integers(2)],
                    timeout=[None, 1e-9, 60][rng.integers(3)],
                )
            )
        elif event == 6 and theirs:
            theirs[rng.integers(len(theirs))].abort()
        else:
            await asyncio.sleep(0.002 * rng.integers(3))
    for number, answer in ours:
        out, alone = await answer, healthy(number)[2]
        assert (out.tokens, out.text, out.finish_reason) == (
            alone.tokens, alone.text, alone.finish_reason,
        ), f"healthy request {number}"  # fmt: skip
        assert out.logprobs == alone.logprobs
    ends = await asyncio.gather(*theirs, return_exceptions=True)
    assert all(isinstance(end, fr.Generation | fr.GenerationError) for end in ends), ends
    assert engine.failure is None
    return sum(isinstance(end, fr.GenerationError) for end in ends)


def run(seed: int, num_events: int) -> int:
    rng = np.random.default_rng(seed)
    makes = [*RAISED, *EXITS]
    drafters: list[Any] = [None, "suffix", hostile.Drafter(seed, V), hostile.Drafter(seed, V)]

    async def main() -> int:
        async with fr.AsyncEngine(
            target(makes[rng.integers(len(makes))]),
            drafter=drafters[rng.integers(len(drafters))],
            draft_length=["auto", 3][rng.integers(2)],
            tree=[None, 6][rng.integers(2)],
            max_batch=int(rng.integers(1, 7)),
        ) as engine:
            return await act(engine, rng, num_events)

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_healthy_requests_among_hostile_ones_get_the_texts_they_get_alone() -> None:
    assert sum(run(seed, 40) for seed in range(8)) > 40  # so many did fail


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@for_all("seed", range(100, 300))
def test_for_many_seeds(seed: int) -> None:
    run(seed, 120)
