"""Which rounds are captured, and drafters on the host beside them, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import build, noisy_copy  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import rules  # noqa: E402
from forerun.drafters import Guess, Model, Outcome, Turn  # noqa: E402
from forerun.engine.engine import Engine  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu_rounds import host_drafts  # noqa: E402
from forerun.gpu_rounds.captures import Captures  # noqa: E402
from forerun.gpu_rounds.choosing import executor_of  # noqa: E402
from forerun.gpu_rounds.lanes import Lane  # noqa: E402
from forerun.gpu_rounds.rounds import CapturedRound, RoundShape  # noqa: E402
from forerun.kernels.compiling import compile_together  # noqa: E402

pytestmark = IN_INTERPRETER
MODEL = build()
TARGET = GpuModel(MODEL)
DRAFT = GpuModel(noisy_copy(MODEL, 0.15))
SAMPLING = fr.Sampling(temperature=0.8, seed=3)


def test_a_round_captured_on_lanes_that_were_used_otherwise_decides_nothing() -> None:
    """The lanes still hold requests that are not over, with longer drafts than the round has."""
    engine = Engine(
        TARGET,
        executor_of=executor_of,
        drafter=Model(DRAFT),
        draft_length="auto",
        rule=rules.get("ratio"),
        num_rows=2,
    )
    executor: Any = engine._executor
    captures, drafts = executor._captures, executor._drafter.rows
    lanes = captures.lanes(2)
    lane = Lane(0, 1, 2, 3, 4, 9, 6, 1.0, 1.0, SAMPLING)
    lanes.put([lane, lane], [5, 5])
    made = captures.round(RoundShape(2, 1, 1, "ratio", draws=True), drafts)
    made.queue()
    assert made._lengths.tolist() == [1, 1]
    lanes.rows.fill_(-1)
    made.queue()
    assert made._lengths.tolist() == [0, 0]
    engine.close()


def test_lengths_and_sizes_that_are_captured() -> None:
    def captures(num_rows: int, length: Any) -> Captures:
        return Captures(TARGET.start(num_rows, 64), num_rows, length)

    steered = captures(32, "auto")
    assert steered.sizes == [32, 8, 2]
    assert [steered.size(count) for count in (32, 9, 8, 3, 2, 1)] == [32, 32, 8, 8, 2, 2]
    assert steered.lengths(32) == [0, 1, 2, 3, 5, 7]
    assert captures(128, "auto").lengths(128) == [0, 1, 2, 3]
    assert captures(128, "auto").length(128, [2, 7]) == 3
    assert [steered.length(8, [count]) for count in (0, 3, 4, 8)] == [0, 3, 5, 7]
    given = captures(64, 5)
    assert [given.lengths(size) for size in given.sizes] == [[0, 5]] * 4
    assert [captures(count, 0).sizes[0] for count in (128, 129, 200)] == [128, 192, 256]
    assert captures(1, 0).lengths(1) == [0]


def test_blocks_that_no_answers_have_room_for_are_not_captured(monkeypatch) -> None:
    """Without drafts 64 lanes are passes of 64 tokens, beside which 448 are read at most."""
    prepared: list[RoundShape] = []
    monkeypatch.setattr(
        Captures, "_prepare", lambda _, rounds: prepared.extend(made.shape for made in rounds)
    )
    monkeypatch.setattr(CapturedRound, "is_ready", False)  # as on a device
    for length, room in ((0, 448), (3, 960)):
        prepared.clear()
        captures = Captures(TARGET.start(64, 64), 64, length)
        captures.round(RoundShape(64, 0, 1, "match", draws=True, block=64), None, goes_on=True)
        blocks = sorted(shape.block for shape in prepared)
        assert blocks[0] == 64
        assert blocks[-1] == room == captures.room(64, [length])


def test_the_room_beside_guesses_of_the_host_is_that_of_their_passes() -> None:
    captures = Captures(TARGET.start(2, 64), 2, 7)
    drafts: Any = object.__new__(host_drafts.HostDrafts)
    drafts._captures, plan = captures, SimpleNamespace(answering=[1, 2])
    for drafts._num_silent, lengths in ((0, [7, 7]), (1, [0, 0])):
        assert drafts._usual_lengths(plan) == lengths
    assert drafts._usual_lengths(SimpleNamespace(answering=[])) == []


class Listener:
    """Repeats the last token, and notes the hidden states that it is told; silent at first."""

    name = "listener"
    layers = (0, 1)

    def __init__(self) -> None:
        self.states: list[Any] = []
        self.num_processed: list[int] = []

    def start(self, target: Any, num_rows: int, capacity: int, rows: Any = None) -> list[int]:
        return []

    def enter(self, state: list[int], row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state[:] = tokens

    def propose(self, state: list[int], turns: Sequence[Turn], *, shared_noise: bool) -> Any:
        is_silent = 5 < len(state) < 10
        return [Guess([] if is_silent else state[-1:] * turn.budget) for turn in turns]

    def observe(self, state: list[int], outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            state += outcome.tokens
            self.states.append(outcome.states.clone())
            self.num_processed.append(outcome.num_processed)

    def release(self, state: list[int], row: int) -> None: ...


@pytest.mark.slow
def test_a_drafter_on_the_host_hears_every_hidden_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in captured rounds, some of them launched ahead, as step by step."""
    heard = []
    for is_captured in (False, True):
        monkeypatch.setattr(host_drafts, "drafts_beside", lambda *_, told=is_captured: told)
        listener = Listener()
        answer = fr.generate(
            TARGET, [1, 2, 3], drafter=listener, draft_length=2, sampling=SAMPLING,
            max_new_tokens=9, ignore_eos=True,
        )  # fmt: skip
        assert not answer.stats.notes
        assert sum(map(len, listener.states)) == listener.num_processed[-1]
        heard.append((answer.tokens, torch.cat(listener.states)))
    assert heard[0][0] == heard[1][0]
    assert torch.equal(heard[0][1], heard[1][1])


def test_a_compilation_that_fails_costs_time_only() -> None:
    def fail() -> None:
        raise RuntimeError("no compiler")

    run = JITFunction.run
    with pytest.warns(RuntimeWarning, match="one by one: RuntimeError: no compiler"):
        compile_together([fail])
    assert JITFunction.run is run
