"""Prompts that are read in the rounds of others, on a CUDA device: the same text as alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from tiny import MIDDLING, ON_DEVICE, build, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import rules  # noqa: E402
from forerun.drafters import Model  # noqa: E402
from forerun.engine.answer_options import AnswerOptions  # noqa: E402
from forerun.engine.engine import Engine  # noqa: E402
from forerun.engine.request import Request  # noqa: E402
from forerun.generation.intake import make_request  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu_rounds.choosing import executor_of  # noqa: E402

pytestmark = ON_DEVICE
Pair = tuple[GpuModel, GpuModel]
NUM_REQUESTS, NUM_NEW = 24, 40
OPTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 20, "top_p": 0.95},
    {"repetition_penalty": 1.2},
    {"temperature": 0.0},
]


@pytest.fixture(scope="module")
def pair() -> Pair:
    model = build(dtype=torch.bfloat16, device="cuda", **MIDDLING)
    return GpuModel(model), GpuModel(noisy_copy(model, 0.03))


def request_of(target: GpuModel, number: int) -> Request:
    """Prompts of 1 to 1,200 tokens, most of them short, with options in turn."""
    drawn = random.Random(number)
    length = int(1200 ** drawn.random())
    prompt = [drawn.randrange(MIDDLING["vocab_size"]) for _ in range(length)]
    sampling = fr.Sampling(**{"temperature": 0.8, "seed": number} | OPTIONS[number % len(OPTIONS)])
    options = AnswerOptions(sampling, max_new_tokens=NUM_NEW, ignore_eos=True)
    return make_request(target, prompt, options)


def answers(pair: Pair, num_rows: int, draft_length: int) -> list[list[int]]:
    """Requests that come while others are answered, a few every round."""
    target, draft = pair
    drafter = Model(draft) if draft_length else None
    engine = Engine(
        target, drafter=drafter, draft_length=draft_length, rule=rules.get("match"),
        num_rows=num_rows, capacity=1400, slowdown=4.0, executor_of=executor_of,
    )  # fmt: skip
    requests = [request_of(target, number) for number in range(NUM_REQUESTS)]
    waiting = list(requests)
    while waiting or engine.busy:
        for request in waiting[:2]:
            engine.submit(request)
        del waiting[:2]
        engine.step()
    engine.close()
    assert all(request.finish_reason == "length" for request in requests)
    return [request.output for request in requests]


@pytest.mark.parametrize("draft_length", [0, 3])
def test_texts_alone_and_beside_the_prompts_of_others(pair: Pair, draft_length: int) -> None:
    assert answers(pair, 12, draft_length) == answers(pair, 1, 3)
