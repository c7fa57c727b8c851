"""What one owner's requests leave behind serves no other: drafters' memories and stored rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from drafting import noisy_copy
from tiny_models import Architecture

import forerun as fr
from clocks import StillClock
from forerun import rules
from forerun.drafters import Forced, Mixed, Model, NGram, Suffix
from forerun.drafters.owners import MOST_OWNERS, ByOwner
from forerun.drafters.passing_on import PassingOn
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.generation.intake import make_request
from forerun.models import TableModel

TABLE = TableModel.random(vocab_size=50, order=1, seed=3)
MODEL = Architecture("llama", "crop", {"max_position_embeddings": 512}).build()
TARGET = fr.wrap(MODEL)
DRAFTERS: dict[str, Callable[[], Any]] = {
    "suffix": Suffix,
    "mixed": lambda: Mixed(Suffix(), NGram()),
    "forced": lambda: Forced(Suffix()),
    "passing on": lambda: PassingOn(Suffix()),
}
pytestmark = pytest.mark.usefixtures("still_clock")


def engine_of(drafter: Any, num_rows: int = 2, target: Any = TABLE, **options: Any) -> Engine:
    options = {"draft_length": 4, "rule": rules.get("match")} | options
    return Engine(target, drafter=drafter, num_rows=num_rows, **options)


def ask(
    engine: Engine,
    owner: str,
    prompt: Any = (1,),
    count: int = 24,
    given: Sequence[int] = (),
    **more: Any,
) -> Request:
    sampling = fr.Sampling(temperature=1.0, seed=5)
    options = AnswerOptions(sampling, max_new_tokens=count, owner=owner, **more)
    request = make_request(engine.target, list(prompt), options, given=given)
    engine.submit(request)
    return request


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def rounds(engine: Engine, owner: str) -> list[int]:
    """Tokens of each round of an answer, which is the same for all owners."""
    request = ask(engine, owner)
    finish(engine)
    return request.stats.emitted_by_round


# --- what drafters remember ---------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_remembers_nothing_of_another_owner(name: str) -> None:
    fresh = rounds(engine_of(DRAFTERS[name]()), "B")
    engine = engine_of(DRAFTERS[name]())
    first, again = rounds(engine, "A"), rounds(engine, "A")
    assert len(again) < len(first) == len(fresh), "its own past helps"
    assert rounds(engine, "B") == fresh, "another's does not"
    assert len(rounds(engine, "B")) < len(fresh)


@pytest.mark.parametrize("name", DRAFTERS)
def test_owners_in_one_batch(name: str) -> None:
    fresh = rounds(engine_of(DRAFTERS[name]()), "B")
    engine = engine_of(DRAFTERS[name]())
    rounds(engine, "A")
    known, new = ask(engine, "A"), ask(engine, "B")
    finish(engine)
    assert known.output == new.output
    assert new.stats.emitted_by_round == fresh
    assert known.stats.rounds < new.stats.rounds


@pytest.mark.parametrize(
    "make",
    [lambda: Suffix(remember=True), lambda: Mixed(Suffix(remember=True), NGram())],
    ids=["suffix", "mixed"],
)
def test_what_is_left_for_the_next_engine_is_kept_apart(make: Callable[[], Any]) -> None:
    fresh = rounds(engine_of(make()), "B")
    drafter = make()
    first = engine_of(drafter)
    for owner in ("A", "C"):
        rounds(first, owner)
    first.close()
    second = engine_of(drafter)
    assert rounds(second, "B") == fresh
    assert len(rounds(second, "A")) < len(fresh)
    assert len(rounds(second, "C")) < len(fresh)


def test_a_model_drafts_for_all_owners_in_one_pass(still_clock: StillClock) -> None:
    sizes: list[int] = []
    model: Any = fr.wrap(noisy_copy(MODEL, 0.1))
    score = model.score

    def counted(state: Any, rows: Any, *more: Any) -> Any:
        sizes.append(len(rows))
        return score(state, rows, *more)

    model.score = counted
    engine = engine_of(Mixed(Suffix(), Model(model)), target=TARGET)
    ask(engine, "A", [1, 2, 3], count=4)
    ask(engine, "B", [3, 2, 1], count=4)
    engine.step()
    assert set(sizes) == {2}


def test_only_so_many_owners_are_remembered_and_the_oldest_idle_go() -> None:
    kept: ByOwner[list[str]] = ByOwner(list)
    kept.assign(0, "busy")
    for number in range(MOST_OWNERS + 5):
        kept.assign(1, f"owner {number}")
        kept[1].append("a text")
        kept.release(1)
    assert len(kept.memories) == MOST_OWNERS
    assert "busy" in kept.memories
    assert "owner 0" not in kept.memories
    kept.assign(1, f"owner {MOST_OWNERS}")
    assert kept[1] == ["a text"]
    kept.assign(1, "owner 0")
    assert kept[1] == []


# --- what rows store ----------------------------------------------------------------------------

HISTORY = [(7 * place + place**2) % 60 for place in range(80)]


def test_a_beginning_is_taken_over_by_its_owner_only() -> None:
    engine = engine_of(None, num_rows=3, target=TARGET)
    ask(engine, "A", HISTORY, count=4)
    finish(engine)
    other = ask(engine, "B", [*HISTORY, 5], count=4)
    finish(engine)
    own = ask(engine, "A", [*HISTORY, 5], count=4)
    finish(engine)
    assert (other.stats.num_reused, own.stats.num_reused) == (0, len(HISTORY))
    assert other.output == own.output


def test_a_busy_row_serves_its_owner_only() -> None:
    engine = engine_of(None, num_rows=3, target=TARGET)
    ask(engine, "A", HISTORY, count=30)
    engine.step()
    other, own = ask(engine, "B", HISTORY, count=4), ask(engine, "A", HISTORY, count=4)
    engine.step()
    assert (other.stats.num_reused, own.stats.num_reused) == (0, len(HISTORY) - 1)


def test_nobody_waits_for_what_another_owner_reads() -> None:
    engine = engine_of(None, num_rows=3, target=TARGET)
    first, other, own = (ask(engine, owner, HISTORY, count=4) for owner in "ABA")
    engine.step()
    assert engine.running == [first, other]
    engine.step()
    assert own in engine.running
    assert own.stats.num_reused == len(HISTORY) - 1


def test_what_is_resumed_is_no_part_of_the_prompt_that_is_reused() -> None:
    engine = engine_of(None, num_rows=1, target=TARGET)
    first = ask(engine, "A", HISTORY, count=8)
    finish(engine)
    again = ask(engine, "A", HISTORY, count=8, given=first.output[:5])
    finish(engine)
    assert again.output == first.output
    assert again.stats.num_reused == len(HISTORY)


# --- who gets a row -----------------------------------------------------------------------------


def test_fifty_requests_of_one_owner_delay_another_by_one_row_at_most() -> None:
    engine = engine_of(None, num_rows=2)
    many = [ask(engine, "A", count=3 + number % 2) for number in range(50)]
    engine.step()
    assert engine.running == many[:2]
    single = ask(engine, "B", count=3)
    while not any(request.finish_reason for request in many):
        engine.step()
        assert single not in engine.running
    engine.step()
    assert single in engine.running
    finish(engine)
    assert all(request.finish_reason == "length" for request in many)


def test_rows_are_shared_evenly_then_by_arrival() -> None:
    engine = engine_of(None, num_rows=4)
    requests = [ask(engine, owner, count=3) for owner in "AAAABBC"]
    engine.step()
    assert engine.running == [requests[0], requests[4], requests[6], requests[1]]
    urgent = ask(engine, "A", count=3, priority=1)
    while any(request.finish_reason is None for request in requests[:2]):
        engine.step()
    engine.step()
    assert engine.running[0] is urgent, "priority comes first"
