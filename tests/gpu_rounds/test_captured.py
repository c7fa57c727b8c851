"""Captured rounds in Triton's interpreter; graphs and what overlaps are in test_captured_gpu.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import build, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import rules  # noqa: E402
from forerun.drafters import Forced, Mixed, Model, NGram, Suffix  # noqa: E402
from forerun.engine.answer_options import AnswerOptions  # noqa: E402
from forerun.engine.engine import Engine  # noqa: E402
from forerun.engine.plan import Span  # noqa: E402
from forerun.engine.proposal import Proposal  # noqa: E402
from forerun.engine.request import Request  # noqa: E402
from forerun.generation.intake import make_request  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.pool import DeviceMemoryError, Pool  # noqa: E402
from forerun.gpu.rows import GpuRows  # noqa: E402
from forerun.gpu_rounds import captures, executor  # noqa: E402
from forerun.gpu_rounds.choosing import executor_of  # noqa: E402
from forerun.gpu_rounds.executor import Captured  # noqa: E402
from forerun.gpu_rounds.host_drafts import HostDrafts  # noqa: E402
from forerun.gpu_rounds.lanes import Lane, Lanes  # noqa: E402
from forerun.gpu_rounds.sampled_steps import LazyRows, SampledSteps  # noqa: E402
from forerun.rules.types import Drawn  # noqa: E402

pytestmark = IN_INTERPRETER
MODEL = build()
TARGET = GpuModel(MODEL)
DRAFT = GpuModel(noisy_copy(MODEL, 0.15))
PROMPTS = [[1, 2, 3], [4, 5, 4, 5, 4], [6]]
LIMITS = [1, 3, 2]
SAMPLING = fr.Sampling(temperature=0.8, seed=3)


def generate(**options: Any) -> list[fr.Generation]:
    options = {"drafter": None, "sampling": SAMPLING, "max_new_tokens": LIMITS} | options
    made: list[fr.Generation] = fr.generate(TARGET, PROMPTS, ignore_eos=True, **options)
    return made


def texts(answers: Sequence[fr.Generation]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """By plain decoding, one request after the other."""
    return texts(generate(batch_size=1))


def engine_of(drafter: Any = None, num_rows: int = 2, **options: Any) -> Engine:
    options = {"draft_length": 2, "rule": rules.get("match")} | options
    return Engine(TARGET, executor_of=executor_of, drafter=drafter, num_rows=num_rows, **options)


def request_of(prompt: Sequence[int], limit: int, **options: Any) -> Request:
    sampling = options.pop("sampling", SAMPLING)
    return make_request(
        TARGET, list(prompt), AnswerOptions(sampling, max_new_tokens=limit, **options)
    )


def requests_of(engine: Engine) -> list[Request]:
    made = [request_of(prompt, limit) for prompt, limit in zip(PROMPTS, LIMITS, strict=True)]
    for request in made:
        engine.submit(request)
    return made


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()
    engine.close()


# --- the same text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [2, *(pytest.param(length, marks=pytest.mark.slow) for length in (1, 3, 7))]
)
def test_a_model_drafts_and_requests_come_and_go(plain: list[list[int]], length: int) -> None:
    """Three requests of different lengths in two rows."""
    answers = generate(drafter=Model(DRAFT), draft_length=length, batch_size=2)
    assert texts(answers) == plain
    assert sum(answer.stats.accepted for answer in answers) > 0
    assert not any(answer.stats.notes for answer in answers)


def test_a_drafter_on_the_host(plain: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guesses are judged on the device: no logits come to the host."""
    monkeypatch.delattr(LazyRows, "__getitem__")
    answers = generate(drafter=NGram(min_n=1), draft_length=2)
    assert texts(answers) == plain
    assert not any(answer.stats.notes for answer in answers)


@pytest.mark.parametrize(
    "drafter",
    [
        NGram(min_n=1),
        pytest.param(Mixed(NGram(min_n=1), Suffix()), marks=pytest.mark.slow),
    ],
    ids=["ngram", "mixed"],
)
def test_a_guess_longer_than_any_captured_round(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first tokens are judged, and the drafter is told so."""
    monkeypatch.setattr(captures, "LONGEST", 2)
    scored: list[int | None] = []
    observe = NGram.observe

    def listen(self: NGram, state: Any, outcomes: Sequence[Any]) -> None:
        scored.extend(outcome.num_scored for outcome in outcomes)
        observe(self, state, outcomes)

    monkeypatch.setattr(NGram, "observe", listen)
    how: dict[str, Any] = {"sampling": SAMPLING, "max_new_tokens": 5}
    prompt = list(range(TARGET.vocab_size))  # so that every token has come before
    expected = fr.generate(TARGET, prompt, drafter=None, **how).tokens
    answer = fr.generate(TARGET, prompt, drafter=drafter, draft_length=4, **how)
    assert answer.tokens == expected
    assert not answer.stats.notes
    assert max(count for count in scored if count is not None) == 2


SLOW: dict[str, dict[str, Any]] = {
    "in one batch": {},
    "a tree": {"drafter": Model(DRAFT), "draft_length": 3, "tree": 5},
    "a drafter with a temperature": {"drafter": Model(DRAFT, temperature=0.0), "draft_length": 2},
    "as long as it pays": {"drafter": Model(DRAFT)},
    "a drafter on another path": {"drafter": Model(MODEL), "draft_length": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_text_does_not_depend_on_the_drafter(plain: list[list[int]], name: str) -> None:
    assert texts(generate(**SLOW[name])) == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        fr.Sampling(temperature=0.0),
        fr.Sampling(temperature=1.3, seed=2**64 - 1, top_k=5),
        fr.Sampling(temperature=0.9, seed=5, top_p=0.7, min_p=0.05),
    ],
    ids=["greedy", "top-k", "top-p and min-p"],
)
def test_sampling_options(sampling: fr.Sampling) -> None:
    alone = texts(generate(sampling=sampling, batch_size=1))
    assert texts(generate(sampling=sampling, drafter=Model(DRAFT), draft_length=2)) == alone
    assert texts(generate(sampling=sampling, drafter=NGram(min_n=1), draft_length=2)) == alone


def test_a_top_k_beyond_32_bits_keeps_everything() -> None:
    lanes = Lanes(1, torch.device("cpu"))
    options = fr.Sampling(top_k=10**10)
    lanes.put([Lane(0, 1, 2, 3, 4, 5, 6, 1.0, 1.0, options)], [0])
    assert lanes.top_k.tolist() == [2**31 - 1]


def test_which_rounds_are_captured() -> None:
    """All that are decided by a rule with kernels, and drafted on the device or not at all."""

    def kind(drafter: Any = None, rule: str = "match", **options: Any) -> Any:
        return type(engine_of(drafter, rule=rules.get(rule), **options)._executor)

    assert kind() is kind(Model(DRAFT)) is kind(Model(DRAFT, temperature=0.5)) is Captured
    assert kind(Model(DRAFT), "ratio") is kind(Model(DRAFT), "block") is Captured
    assert kind(Forced(Model(DRAFT))) is Captured  # as `AsyncEngine` has it
    assert kind(NGram()) is kind(Suffix(), "ratio") is kind(Forced()) is HostDrafts
    assert kind(Mixed(NGram(), Suffix())) is kind(Forced(Mixed(Suffix()))) is HostDrafts
    assert kind(Mixed(NGram(), Model(DRAFT))) is kind(Mixed(Suffix()), "ratio") is SampledSteps
    assert kind(NGram(), tree=4) is kind(Model(DRAFT), tree=4) is SampledSteps
    assert kind(Model(MODEL)) is SampledSteps
    assert kind(Model(DRAFT, temperature=0.5), "ratio") is SampledSteps
    assert kind(rule="typical", drafter=Model(DRAFT)) is SampledSteps
    assert kind(num_rows=512) is Captured
    assert kind(num_rows=513) is SampledSteps  # more lanes than a pass has room for


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_rules_that_divide_by_the_drafts_law(rule: str) -> None:
    """They count, and a copy of the target is never refused; their law is a matter of kernels
    (`test_kernels.py`) and of many texts (`test_captured_gpu.py`)."""
    how: dict[str, Any] = {"draft_length": 2, "rule": rule}
    answers = generate(drafter=Model(DRAFT), **how)
    again = generate(drafter=Model(DRAFT), **how)
    assert texts(answers) == texts(again)
    assert [len(answer.tokens) for answer in answers] == LIMITS
    for answer in answers:
        stats = answer.stats
        assert 0 <= stats.accepted <= stats.drafted
        assert stats.accepted + stats.rounds == len(answer.tokens)
    sure = generate(drafter=Model(GpuModel(MODEL)), **how)
    assert [answer.stats.accepted for answer in sure] == [answer.stats.drafted for answer in sure]


def test_memory_of_sampled_steps_is_that_of_the_largest_round() -> None:
    """However many numbers of requests and of guesses there have been."""
    engine = engine_of(NGram(min_n=1), num_rows=8, tree=2)
    steps: Any = engine._executor
    assert type(steps) is SampledSteps
    edited = replace(SAMPLING, repetition_penalty=1.5)
    logits = torch.randn((8, 3, TARGET.vocab_size), generator=torch.Generator().manual_seed(1))
    requests = [request_of([1, 2], 9, sampling=edited) for _ in range(8)]
    spans = [Span(row, request, 0, 2, True, True) for row, request in enumerate(requests)]
    whole = None
    for count in (8, *range(1, 8)):
        steps._is_on_host = [False] * count
        drafts = [Proposal([4, 5], Drawn.SHARED)] * count
        tokens, faults = steps._sample(spans[:count], drafts, logits[:count].clone())
        whole = tokens if whole is None else whole
        assert (tokens == whole[:count]).all()
        assert not faults.any()
    assert sorted(steps._kept) == [4, 8, 16, 32]
    assert steps._edits.num_lanes == 8
    engine.close()


# --- on the host beside the device ---------------------------------------------------------------


class Alternating:
    """A processor that forbids the even and the odd tokens in turn, which needs all its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, self.num_calls % 2 :: 2] = -torch.inf
        self.num_calls += 1
        return scores


MIXED = [SAMPLING, fr.Sampling(temperature=0.8, seed=3, processors=[Alternating()]), SAMPLING]


@pytest.fixture(scope="module")
def mixed() -> list[list[int]]:
    """By plain decoding, one request after the other; the host decides the second."""
    return texts(generate(sampling=MIXED, max_new_tokens=[4, 4, 3], batch_size=1))


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(None, marks=pytest.mark.slow),  # as in the next test
        Model(DRAFT),
        NGram(min_n=1),
        pytest.param(Model(GpuModel(MODEL)), marks=pytest.mark.slow),
    ],
    ids=["none", "model", "ngram", "copy"],
)
def test_a_request_that_needs_the_host_beside_others(drafter: Any, mixed: list[list[int]]) -> None:
    """All as alone: what a request's neighbours need does not change its text."""
    answers = generate(
        sampling=MIXED, max_new_tokens=[4, 4, 3], drafter=drafter, draft_length=2, batch_size=3
    )
    assert texts(answers) == mixed
    assert [token % 2 for token in mixed[1]] == [1, 0, 1, 0]


def as_it_is(_: Any, scores: Any) -> Any:
    return scores


def the_least_likely(_: Any, scores: Any) -> Any:
    return torch.full_like(scores, -torch.inf).scatter(1, scores.argmin(1, keepdim=True), 0.0)


@pytest.mark.parametrize(
    ("processor", "expected"), [(as_it_is, [1, 2, 3, 4]), (the_least_likely, [1, 1, 2, 2])]
)
def test_others_do_not_wait_for_a_request_that_needs_the_host(
    processor: Any, expected: list[int]
) -> None:
    """It is in every round as long as the host chooses what the device has chosen, else in every
    second one; the others gain a token in each."""
    engine = engine_of(num_rows=3)
    samplings = [SAMPLING, replace(SAMPLING, processors=[processor]), SAMPLING]
    requests = [
        request_of(prompt, 4, sampling=sampling)
        for prompt, sampling in zip(PROMPTS, samplings, strict=True)
    ]
    for request in requests:
        engine.submit(request)
    for count, of_host in enumerate(expected, start=1):
        engine.step()
        assert [request.num_output for request in requests] == [count, of_host, count]
    engine.close()


def test_a_request_that_needs_the_host_and_is_alone() -> None:
    """Its next round is launched ahead while the host agrees with the device."""
    for processor, flies in ((as_it_is, True), (the_least_likely, False)):
        engine: Any = engine_of(num_rows=1)
        sampling = replace(SAMPLING, processors=[processor])
        request = request_of(PROMPTS[0], 6, sampling=sampling)
        engine.submit(request)
        ahead = []
        follow = engine._executor._follow
        engine._executor._follow = lambda *args, follow=follow, ahead=ahead: (
            ahead.append(follow(*args)) or ahead[-1]
        )
        for count in range(1, 4):
            engine.step()
            assert request.num_output == count
        assert [one is not None for one in ahead] == [True, flies, flies]
        engine.close()


@pytest.mark.parametrize(
    "drafter", [None, pytest.param(Model(DRAFT), marks=pytest.mark.slow)], ids=["none", "model"]
)
def test_log_probabilities_are_those_of_the_host(
    plain: list[list[int]], drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests with several numbers of likeliest tokens, beside one that wants none."""
    told = []
    for on_host in (False, True):
        if on_host:
            monkeypatch.setattr(executor, "fits_device", lambda request: False)
        engine = engine_of(drafter, num_rows=3)
        requests = [
            request_of(prompt, limit, logprobs=count)
            for prompt, limit, count in zip(PROMPTS, LIMITS, (0, 3, None), strict=True)
        ]
        for request in requests:
            engine.submit(request)
        finish(engine)
        assert [request.output for request in requests] == plain
        told.append([request.generation().logprobs for request in requests])
    for ours, theirs in zip(*told, strict=True):
        if theirs is None:
            assert ours is None
            continue
        for one, other in zip(ours, theirs, strict=True):
            assert one.token == other.token
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=1e-5)


def test_more_likeliest_tokens_than_a_round_finds_come_from_the_host() -> None:
    options = {"sampling": SAMPLING, "max_new_tokens": 2, "drafter": None, "ignore_eos": True}
    answer = fr.generate(TARGET, PROMPTS[0], logprobs=30, **options)
    assert [len(entry.top) for entry in answer.logprobs] == [30, 30]


# --- ends ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter", [None, Model(DRAFT), NGram(min_n=1)], ids=["none", "model", "ngram"]
)
def test_stop_tokens_end_a_text_wherever_they_stand(plain: list[list[int]], drafter: Any) -> None:
    for place in range(LIMITS[1] - 1):
        ending = plain[1][place]
        answer = fr.generate(
            TARGET, PROMPTS[1], drafter=drafter, draft_length=3, sampling=SAMPLING,
            max_new_tokens=LIMITS[1], stop_tokens=[ending],
        )  # fmt: skip
        assert answer.finish_reason == "stop"
        assert answer.tokens == plain[1][: plain[1].index(ending) + 1]


@pytest.mark.slow
@pytest.mark.parametrize("is_drafted", [False, True])
def test_an_abort_in_mid_flight(plain: list[list[int]], is_drafted: bool) -> None:
    engine = engine_of(Model(DRAFT) if is_drafted else None, draft_length=1)
    first, second, third = requests_of(engine)
    engine.step()
    engine.abort(second.number)
    finish(engine)
    assert 0 < second.num_output < LIMITS[1]
    assert second.output == plain[1][: second.num_output]
    assert (first.output, third.output) == (plain[0], plain[2])


@pytest.mark.slow
def test_an_engine_closed_in_mid_flight_leaves_its_storage_to_the_next(
    plain: list[list[int]],
) -> None:
    engine = engine_of(Model(DRAFT), num_rows=3)
    requests = requests_of(engine)
    engine.step()
    engine.close()
    for request, text in zip(requests, plain, strict=True):
        assert request.output == text[: request.num_output]
    del engine
    answers = generate(drafter=Model(DRAFT), draft_length=2)
    assert texts(answers) == plain


@pytest.mark.slow
def test_a_text_is_resumed(plain: list[list[int]]) -> None:
    given = [text[:count] for text, count in zip(plain, (0, 1, 1), strict=True)]
    assert texts(generate(drafter=Model(DRAFT), draft_length=2, resume=given)) == plain


# --- the drafter falls behind, fails, or is done without ----------------------------------------


@pytest.mark.slow
def test_a_drafter_that_pauses_catches_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the target, which is right as long as it has read all of the text.  The next round
    is on its way before a plan is made, so a length takes effect one round later."""
    engine = engine_of(Model(GpuModel(MODEL)), num_rows=1)
    request = request_of(PROMPTS[0], 16)
    engine.submit(request)
    accepted, heights = [], []
    learn = engine._planner.learn

    def noting(plan: Any, drafted: Any, *more: Any) -> None:
        heights.append(drafted.height)
        learn(plan, drafted, *more)

    engine._planner._length = 2
    engine.step()  # which reads the prompt, without drafts
    monkeypatch.setattr(engine._planner, "learn", noting)
    for length in (2, 0, 0, 2, 2):
        engine._planner._length = length
        before = request.stats.accepted
        engine.step()
        accepted.append(request.stats.accepted - before)
    assert accepted == [2, 2, 0, 0, 2]
    assert heights == [2, 2, None, None, 2]  # None: the drafter was not asked
    text = request.output
    engine.close()
    assert text == alone(PROMPTS[0], len(text))


def alone(prompt: Sequence[int], limit: int, target: Any = TARGET) -> list[int]:
    answer = fr.generate(
        target, list(prompt), drafter=None, sampling=SAMPLING, max_new_tokens=limit, ignore_eos=True
    )
    tokens: list[int] = answer.tokens
    return tokens


@pytest.fixture(scope="module")
def broken() -> Any:
    """A copy of the model to which one token, the last, is NaN."""
    model = noisy_copy(MODEL, 0.0)
    with torch.no_grad():
        model.model.embed_tokens.weight[39] = float("nan")
    return GpuModel(model)


@pytest.mark.parametrize(
    "drafted", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "drafted"]
)
def test_nan_fails_the_request_that_meets_it_alone(broken: Any, drafted: bool) -> None:
    answers = fr.generate(
        broken, [PROMPTS[0], [5, 39]], sampling=SAMPLING, max_new_tokens=2, ignore_eos=True,
        errors="return", drafter=Model(DRAFT) if drafted else None, draft_length=1,
    )  # fmt: skip
    assert answers[0].tokens == alone(PROMPTS[0], 2)
    assert answers[0].finish_reason == "length"
    assert answers[1].finish_reason == "error"
    assert answers[1].tokens == []
    assert "NaN" in str(answers[1].error)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_a_drafter_that_gives_nan_costs_its_drafts_alone(broken: Any, rule: str) -> None:
    """The prompt holds the token that the drafter cannot read."""
    answers = fr.generate(
        TARGET, [[5, 39], [1, 2]], drafter=Model(broken), draft_length=2, rule=rule,
        sampling=SAMPLING, max_new_tokens=3, ignore_eos=True, errors="return",
    )  # fmt: skip
    assert [answer.finish_reason for answer in answers] == ["length", "length"]
    if rule == "match":
        assert answers[0].tokens == alone([5, 39], 3)


def test_a_drafter_without_memory_costs_its_drafts_alone(
    plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Pool.make

    def refuse(self: Pool) -> None:
        if self is DRAFT._pass.pool:
            raise DeviceMemoryError("no memory")
        make(self)

    monkeypatch.setattr(Pool, "make", refuse)
    answers = generate(drafter=Model(DRAFT), draft_length=2)
    assert texts(answers) == plain
    assert all("no memory" in answer.stats.notes[0] for answer in answers)


@pytest.mark.slow
def test_a_text_without_pages_of_the_drafter_goes_on_without_drafts(
    plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the rounds of others, who are drafted for; the first has one token to generate."""
    reserve = GpuRows.reserve

    def refuse(self: GpuRows, row: int, begin: int, end: int) -> None:
        if self.storage.weights is DRAFT._weights and row == 1:
            raise DeviceMemoryError("no pages")
        reserve(self, row, begin, end)

    monkeypatch.setattr(GpuRows, "reserve", refuse)
    answers = generate(drafter=Model(DRAFT), draft_length=2, max_new_tokens=[1, 3, 4])
    assert [text[:limit] for text, limit in zip(texts(answers), LIMITS, strict=True)] == plain
    assert not any(answer.stats.notes for answer in answers)
    assert [answer.stats.drafted > 0 for answer in answers] == [False, False, True]


@pytest.mark.slow
def test_a_draft_model_stores_nothing_of_texts_that_have_ended() -> None:
    """Another engine may need its pages before this one has a next request."""
    draft = GpuModel(noisy_copy(MODEL, 0.15)).on_trial(8)
    engine = engine_of(Model(draft))
    engine.submit(request_of([1, 2, 3], 4))
    engine.step()
    assert draft._pass.pool.num_unused == 6
    while engine.busy:
        engine.step()
    assert draft._pass.pool.num_unused == 7
    engine.close()


def test_lanes_draft_as_far_as_their_own_requests_allow() -> None:
    engine = engine_of(Model(DRAFT), num_rows=3)
    made = [
        request_of(prompt, 4, draft_length=limit)
        for prompt, limit in zip(PROMPTS, [0, 1, None], strict=True)
    ]
    for request in made:
        engine.submit(request)
    finish(engine)
    assert [max(request.stats.drafted_by_round) for request in made] == [0, 1, 2]
    alone = generate(batch_size=1, max_new_tokens=4)
    assert [request.output for request in made] == texts(alone)
