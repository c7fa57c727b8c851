"""Captured rounds, in the interpreter, on a pool that is too small for all requests at once."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import build, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import rules  # noqa: E402
from forerun.drafters import Model  # noqa: E402
from forerun.engine.answer_options import AnswerOptions  # noqa: E402
from forerun.engine.engine import Engine  # noqa: E402
from forerun.generation.intake import make_request  # noqa: E402
from forerun.gpu import attention, shapes  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.pool import Page, Pool  # noqa: E402
from forerun.gpu_rounds.choosing import executor_of  # noqa: E402
from forerun.gpu_rounds.executor import Captured  # noqa: E402

pytestmark = IN_INTERPRETER
PROMPTS = [[(7 * place * place + shift) % 40 for place in range(14)] for shift in (1, 2, 3)]
SAMPLING = fr.Sampling(temperature=0.8, seed=3)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 tokens; texts of 17 tokens and what is drafted after them need a fourth."""
    monkeypatch.setattr(shapes, "CHUNK", 16)
    monkeypatch.setattr(attention, "BLOCK_KEYS", 16)
    monkeypatch.setattr("forerun.engine.seats.FIRST", 2)


@pytest.mark.parametrize(
    ("pages", "num_new"),
    [
        (None, 4),
        pytest.param(64, 8, marks=pytest.mark.slow),
        pytest.param(5, 8, marks=pytest.mark.slow),
    ],
    ids=["plain", "drafted", "drafted, with pages for one"],
)
def test_texts_are_those_alone(pages: int | None, num_new: int) -> None:
    """Two rows fit until their texts grow; the others wait, and one goes back to the queue."""
    model = build()
    roomy = GpuModel(model).on_trial(64)
    full = GpuModel(model).on_trial(8)
    drafter = None
    if pages is not None:
        draft = GpuModel(noisy_copy(model, 0.15)).on_trial(pages)
        drafter = Model(draft)
    engine = Engine(
        full, executor_of=executor_of, drafter=drafter, num_rows=3, draft_length=2,
        rule=rules.get("match"),
    )  # fmt: skip
    assert type(engine._executor) is Captured
    requests = []
    for prompt in PROMPTS:
        asked = AnswerOptions(SAMPLING, max_new_tokens=num_new, ignore_eos=True)
        requests.append(make_request(full, prompt, asked))
        engine.submit(requests[-1])
    while engine.busy:
        engine.step()
    if drafter is not None:
        assert sum(request.stats.drafted for request in requests) > 0
    assert sum(request.stats.preemptions for request in requests) > 0
    assert not any(request.stats.notes for request in requests)
    engine.close()
    alone: Any = fr.generate(
        roomy, PROMPTS, drafter=None, sampling=SAMPLING, max_new_tokens=num_new, ignore_eos=True
    )
    assert [request.output for request in requests] == [answer.tokens for answer in alone]


def test_texts_of_an_engine_that_rests_make_room_for_another() -> None:
    """Both have rows of one model: what the first still stores is given up, oldest first."""
    full = GpuModel(build()).on_trial(8)
    first, second = (
        Engine(
            full, executor_of=executor_of, drafter=None, num_rows=2, draft_length=0,
            rule=rules.get("match"),
        )
        for _ in range(2)
    )  # fmt: skip
    texts = []
    for engine in (first, second, first):
        requests = []
        for prompt in PROMPTS[:2]:
            asked = AnswerOptions(SAMPLING, max_new_tokens=1, ignore_eos=True)
            requests.append(make_request(full, prompt, asked))
            engine.submit(requests[-1])
        while engine.busy:
            engine.step()
        texts.append([request.output for request in requests])
        assert not any(request.stats.preemptions for request in requests)
    assert texts[0] == texts[1] == texts[2]


def test_a_prompt_longer_than_the_pool_is_refused() -> None:
    full = GpuModel(build()).on_trial(8)
    with pytest.raises(fr.UnsupportedError, match=r"100 tokens, where 79 fit.*--gpu-memory"):
        fr.generate(full, list(range(10)) * 10, drafter=None, max_new_tokens=1)


def test_the_pool_of_a_drafter_that_is_gone_is_freed() -> None:
    """Although the target lives on, with rounds that drafted on it."""
    model = build()
    target, draft = GpuModel(model), GpuModel(noisy_copy(model, 0.15))

    def engine_of(drafter: Any, length: int) -> Engine:
        return Engine(
            target, executor_of=executor_of, drafter=drafter, num_rows=1, draft_length=length,
            rule=rules.get("match"),
        )  # fmt: skip

    engine = engine_of(Model(draft), 1)
    asked = AnswerOptions(SAMPLING, max_new_tokens=3, ignore_eos=True)
    engine.submit(make_request(target, PROMPTS[0], asked))
    while engine.busy:
        engine.step()
    storage = engine._state.storage
    keys = ref(draft._pass.pool.tensors[0])
    num_rounds = len(storage.rounds)
    engine.close()
    del engine, draft
    gc.collect()
    again = engine_of(None, 0)
    gc.collect()
    assert again._state.storage is storage
    assert len(storage.rounds) < num_rounds
    assert keys() is None


@pytest.mark.slow
def test_a_round_on_its_way_is_worth_nothing_once_its_pages_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request goes back to the queue while a round for it is on its way, another one takes over
    its pages, and it enters the same row again with the same text."""
    take = Pool.take

    def poisoned(self: Pool) -> Page:
        page = take(self)
        for part in self.tensors[:2]:
            part[:, page.number] = torch.nan
        return page

    monkeypatch.setattr(Pool, "take", poisoned)
    model = build()
    full, roomy = GpuModel(model).on_trial(8), GpuModel(model).on_trial(64)
    greedy, patient = (
        Engine(
            full, executor_of=executor_of, drafter=None, num_rows=num_rows, draft_length=0,
            rule=rules.get("match"),
        )
        for num_rows in (2, 1)
    )  # fmt: skip
    asked = AnswerOptions(SAMPLING, max_new_tokens=6, ignore_eos=True)
    first, sent_back, third = (make_request(full, prompt, asked) for prompt in PROMPTS)
    greedy.submit(first)
    patient.submit(sent_back)
    while not sent_back.stats.preemptions:
        greedy.step()
        patient.step()
    greedy.submit(third)
    while greedy.busy:
        greedy.step()
    assert patient._state.lengths == [0]
    while patient.busy:
        patient.step()
    alone: Any = fr.generate(
        roomy, PROMPTS, drafter=None, sampling=SAMPLING, max_new_tokens=6, ignore_eos=True
    )
    assert sent_back.output == alone[1].tokens
