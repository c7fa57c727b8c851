"""Prompts that are read in the rounds of others, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import build, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import rules  # noqa: E402
from forerun.base.clock import working  # noqa: E402
from forerun.drafters import Model, NGram  # noqa: E402
from forerun.engine.answer_options import AnswerOptions  # noqa: E402
from forerun.engine.engine import Engine  # noqa: E402
from forerun.engine.request import Request  # noqa: E402
from forerun.generation.intake import make_request  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.rows import GpuRows  # noqa: E402
from forerun.gpu_rounds.blocks import (  # noqa: E402
    block_size,
    block_sizes,
    count,
    fitting,
    most_read,
    num_segments,
)
from forerun.gpu_rounds.choosing import executor_of  # noqa: E402
from forerun.gpu_rounds.rounds import CapturedRound, RoundShape  # noqa: E402

pytestmark = IN_INTERPRETER
MODEL = build()
TARGET = GpuModel(MODEL)
DRAFT = GpuModel(noisy_copy(MODEL, 0.15))
SAMPLING = fr.Sampling(temperature=0.8, seed=3)
LONG = [(7 * place + place // 5) % 40 for place in range(30)]
SHORT = [1, 2, 3]


def test_parts_fill_a_block_and_the_beginning_of_what_is_too_long_is_read_before() -> None:
    parts = [(0, 5, LONG[:10]), (1, 0, LONG)]
    assert fitting(parts, 64) == (parts, [])
    inside, before = fitting(parts, 32)
    assert (inside[0], before) == (parts[0], [(1, 0, LONG[:8])])
    assert inside[1] == (1, 8, LONG[8:])
    assert fitting(parts, 0) == ([], parts)


def test_a_block_has_room_for_so_many_parts() -> None:
    """However short they are: each takes a segment of attention of its own."""
    parts = [(row, 0, [1, 2]) for row in range(20)]
    inside, before = fitting(parts, 64)
    assert (len(inside), inside + before) == (num_segments(64), parts)


@pytest.mark.parametrize("num_lanes", [1, 24, 64, 100, 200, 256, 512])
def test_a_block_fills_a_pass(num_lanes: int) -> None:
    assert block_size(0, num_lanes) == 0
    sizes = block_sizes(num_lanes)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 1024 - num_lanes
    for wanted in (1, 17, 100, 448, 4000):
        size, total = block_size(wanted, num_lanes), num_lanes + block_size(wanted, num_lanes)
        assert size >= min(wanted, sizes[-1])
        assert total % 128 == 0 or total in (16, 32, 64)


def test_a_longer_usual_round_leaves_room_for_a_larger_block() -> None:
    """The largest is the same share of a usual round, and fills one of the blocks."""
    for num_lanes in (1, 64, 128, 256):
        rooms = [most_read(num_lanes, num_lanes * (length + 1)) for length in (0, 1, 3)]
        assert rooms == sorted(rooms)
        assert all(block_size(room, num_lanes) == room >= 448 for room in rooms)
    assert [most_read(64, usual) for usual in (64, 128, 256)] == [448, 704, 960]


class Rounds:
    """An engine, the prompt tokens that it reads in passes of their own, and the shapes of the
    rounds that read others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        options = {"drafter": None, "draft_length": 2, "rule": rules.get("match")} | options
        self.engine = Engine(TARGET, executor_of=executor_of, num_rows=3, **options)
        self.num_apart, feed = 0, GpuRows.feed

        def counting(rows: GpuRows, parts: Sequence[Any]) -> None:
            if rows.storage.weights is TARGET._weights:
                self.num_apart += count(parts)
            feed(rows, parts)

        monkeypatch.setattr(GpuRows, "feed", counting)
        self.reading: list[RoundShape] = []
        launch = CapturedRound.launch

        def noting(made: CapturedRound) -> Any:
            self.reading += [made.shape] if made.shape.block else []
            return launch(made)

        monkeypatch.setattr(CapturedRound, "launch", noting)

    def ask(self, prompt: Sequence[int], limit: int, **options: Any) -> Request:
        sampling = fr.Sampling(temperature=0.8, seed=3, **options)
        request = make_request(
            TARGET, list(prompt), AnswerOptions(sampling, max_new_tokens=limit, ignore_eos=True)
        )
        self.engine.submit(request)
        return request

    def finish(self) -> None:
        while self.engine.busy:
            self.engine.step()
        self.engine.close()


MOST = {tuple(SHORT): 9, tuple(LONG): 3}
"""Tokens of what is written alone once, where several tests read a beginning of it."""


@cache
def plain_text(prompt: tuple[int, ...], limit: int) -> list[int]:
    return alone(prompt, limit, drafter=None)


def alone(prompt: Sequence[int], limit: int, **how: Any) -> list[int]:
    if not how:
        most = MOST.get(tuple(prompt), limit)
        return plain_text(tuple(prompt), most)[:limit]
    sampling = fr.Sampling(temperature=0.8, seed=3, **how.pop("options", {}))
    answer = fr.generate(
        TARGET, list(prompt), max_new_tokens=limit, ignore_eos=True, sampling=sampling,
        **{"drafter": None} | how,
    )  # fmt: skip
    tokens: list[int] = answer.tokens
    return tokens


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "match": {"drafter": Model(DRAFT)},
    "ratio": {"drafter": Model(DRAFT), "rule": rules.get("ratio")},
    "block": {"drafter": Model(DRAFT), "rule": rules.get("block")},
}


@pytest.mark.parametrize(
    "name", ["plain", "match", *(pytest.param(n, marks=pytest.mark.slow) for n in list(HOW)[2:])]
)
def test_prompts_are_read_in_the_rounds_of_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text as alone; who comes has the first token after two plans."""
    how = HOW[name]
    rounds = Rounds(monkeypatch, **how)
    first = rounds.ask(SHORT, 9)
    rounds.engine.step()
    rounds.engine.step()
    others = [rounds.ask(LONG, 3), rounds.ask(LONG[3:9], 3)]
    assert [request for request, _ in rounds.engine.step()] == [first]
    assert [request.num_output for request in others] == [0, 0]
    assert all(gained for _, gained in rounds.engine.step())
    assert all(request.num_output for request in others)
    rounds.finish()
    assert rounds.num_apart == 0
    assert {shape.draft_length for shape in rounds.reading} == {0}
    expected = {} if name in ("plain", "match") else {"draft_length": 2} | how
    texts = [alone(p, n, **expected) for p, n in ((SHORT, 9), (LONG, 3), (LONG[3:9], 3))]
    assert [first.output, *(request.output for request in others)] == texts


def test_guesses_of_the_host_wait_while_prompts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, drafter=NGram(min_n=1))
    first = rounds.ask(SHORT * 3, 9)
    rounds.engine.step()
    rounds.engine.step()
    others = [rounds.ask(LONG, 3), rounds.ask(LONG[3:9], 3)]
    rounds.finish()
    assert rounds.num_apart == 0
    assert {shape.draft_length for shape in rounds.reading} == {0}
    assert first.stats.drafted > 0
    texts = [alone(p, n) for p, n in ((SHORT * 3, 9), (LONG, 3), (LONG[3:9], 3))]
    assert [first.output, *(request.output for request in others)] == texts


def test_a_prompt_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of at most 12 tokens; the times of the rounds are those of the rounds with them."""
    rounds = Rounds(monkeypatch, slowdown=4.0)
    schedule: Any = rounds.engine._schedule
    loads: list[Any] = []
    monkeypatch.setattr(schedule._pacing, "num_tokens", lambda num_answered, room: 12)
    monkeypatch.setattr(schedule._pacing, "learn", lambda seconds, *load: loads.append(load))
    first = rounds.ask(SHORT, 8)
    rounds.engine.step()
    other = rounds.ask(LONG, 3)
    rounds.finish()
    assert rounds.num_apart == 0
    assert (first.output, other.output) == (alone(SHORT, 8), alone(LONG, 3))
    assert loads[:5] == [(0, 31), (1, 31), (1, 31), (1, 28), (1, 0)]  # one plan later than planned


def test_reading_alone_takes_the_time_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, slowdown=4.0)
    schedule: Any = rounds.engine._schedule
    learned: list[Any] = []
    monkeypatch.setattr(schedule._pacing, "num_tokens", lambda num_answered, room: 12)
    monkeypatch.setattr(schedule._pacing, "learn", lambda *told: learned.append(told))
    request = rounds.ask(LONG, 2)
    begin = working()
    rounds.finish()
    assert [load for _, *load in learned[:3]] == [[0, 12], [0, 12], [0, 31]]
    assert all(seconds > 0 for seconds, *_ in learned)
    assert sum(seconds for seconds, *_ in learned) <= working() - begin
    assert request.output == alone(LONG, 2)


def test_lanes_that_are_free_are_taken_with_other_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with penalties, one with top-k, after others have left; nothing is cut or edited before
    and after that."""
    rounds = Rounds(monkeypatch)
    first = rounds.ask(SHORT, 9)
    rounds.ask(LONG[:4], 2)
    rounds.engine.step()
    rounds.engine.step()
    options = [{"repetition_penalty": 1.5, "bad_words": [[5]]}, {"top_k": 3}]
    made = [rounds.ask(LONG[5:12], 3, **some) for some in options]
    rounds.finish()
    assert first.output == alone(SHORT, 9)
    for request, some in zip(made, options, strict=True):
        assert request.output == alone(LONG[5:12], 3, options=some)


def test_a_client_that_leaves_while_its_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is given to the next, whose prompt is read after what was on its way."""
    rounds = Rounds(monkeypatch)
    first = rounds.ask(SHORT, 8)
    rounds.engine.step()
    leaver = rounds.ask(LONG, 3)
    rounds.engine.step()
    rounds.engine.abort(leaver.number)
    others = [rounds.ask(LONG[9:], 3), rounds.ask(LONG[2:20], 3)]
    rounds.finish()
    assert leaver.output == []
    assert first.output == alone(SHORT, 8)
    assert [other.output for other in others] == [alone(LONG[9:], 3), alone(LONG[2:20], 3)]
