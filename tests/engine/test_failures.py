"""Failures are loud: a request that fails raises, and what the others have is not lost."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from drafting import Saying

import forerun as fr
from forerun.models import TableModel
from forerun.models.function import FunctionModel

TABLE = TableModel.random(vocab_size=7, order=2, seed=0)


def nan_after_six(ids: Any) -> Any:
    """Texts that begin with 6 get NaN from their third token on."""
    return np.full(7, np.nan) if ids[0] == 6 and len(ids) > 3 else np.log(TABLE.probs(ids))


TARGET = FunctionModel(nan_after_six, vocab_size=7, logits=True)
PROMPTS = [[1, 2], [6, 2], [3, 3]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_raises_and_carries_all_results(temperature: float) -> None:
    sampling = fr.Sampling(temperature=temperature, seed=1)
    with pytest.raises(fr.GenerationError, match="Request 1 failed at output position 2") as caught:
        fr.generate(TARGET, PROMPTS, drafter=None, sampling=sampling, max_new_tokens=6)
    assert "hold NaN" in str(caught.value)
    assert "float32" in str(caught.value)
    first, failed, last = caught.value.results
    assert (failed.finish_reason, len(failed.tokens)) == ("error", 2)
    plain = fr.generate(TABLE, PROMPTS, drafter=None, sampling=sampling, max_new_tokens=6)
    assert [first.tokens, last.tokens] == [plain[0].tokens, plain[2].tokens]
    returned = fr.generate(
        TARGET, PROMPTS, drafter=None, sampling=sampling, max_new_tokens=6, errors="return"
    )
    assert [out.tokens for out in returned] == [out.tokens for out in caught.value.results]
    assert returned[1].error is not None


def test_one_request_that_fails_is_not_given_a_number() -> None:
    with pytest.raises(fr.GenerationError, match=r"^The request failed at output position 2"):
        fr.generate(TARGET, [6, 2], drafter=None, max_new_tokens=6)


class Raising:
    """A processor with a bug that shows from the fourth token on."""

    def __call__(self, ids: Any, scores: Any) -> Any:
        if ids.shape[1] > 3:
            raise KeyError("three")
        return scores


def test_a_processor_that_raises_is_the_cause() -> None:
    sampling = fr.Sampling(seed=1, processors=[Raising()])
    with pytest.raises(fr.GenerationError, match="a processor or a grammar") as caught:
        fr.generate(TABLE, [1, 2], drafter=None, sampling=sampling, max_new_tokens=6)
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(caught.value.results.tokens) == 2


def test_a_stream_gives_everything_before_it_raises() -> None:
    pieces: list[Any] = []
    stream = fr.stream(TARGET, PROMPTS, drafter=None, max_new_tokens=6)
    with pytest.raises(fr.GenerationError, match="Request 1"):
        pieces.extend(stream)
    ends = {piece.index: piece.finish_reason for piece in pieces if piece.finish_reason}
    assert ends == {0: "length", 1: "error", 2: "length"}
    assert [len(out.tokens) for out in stream.results()] == [6, 2, 6]


def test_several_failures_are_counted() -> None:
    with pytest.raises(fr.GenerationError, match="So did 1 more") as caught:
        fr.generate(TARGET, [[6, 1], [1, 2], [6, 3]], drafter=None, max_new_tokens=6)
    assert "1 of them complete" in str(caught.value)


def test_an_unknown_way_of_reporting_errors() -> None:
    with pytest.raises(fr.InputError, match="errors is not known"):
        fr.generate(TABLE, [1], drafter=None, errors="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(None, "no list of guesses. Received None"), ([[1]], "no Guess. Received .1.. Return Guess")],
)
def test_a_drafter_that_gives_no_guesses_is_told_what_to_give(answer: Any, reason: str) -> None:
    drafter = Saying(lambda turn: None)
    drafter.propose = lambda *_, **__: answer  # type: ignore[method-assign]
    with pytest.warns(RuntimeWarning, match=reason):
        fr.generate(TABLE, [1], drafter=drafter, draft_length=3)


def test_a_drafter_that_fails_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = Saying(lambda turn: 1 / 0)
    with (
        pytest.warns(RuntimeWarning, match="saying failed") as warned,
        caplog.at_level(logging.WARNING, logger="forerun"),
    ):
        outs = fr.generate(TABLE, PROMPTS, drafter=broken, draft_length=3, batch_size=1)
    assert len(warned) == 1
    assert warned[0].filename == __file__  # the caller's line, not ours
    assert "The text is not affected" in str(warned[0].message)
    assert [record.name for record in caplog.records] == ["forerun"]
    assert all("ZeroDivisionError" in out.stats.notes[0] for out in outs)
