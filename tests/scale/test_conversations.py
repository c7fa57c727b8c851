"""Where the next turn of a conversation goes."""

from __future__ import annotations

from forerun.scale.ingress import BLOCK, Conversations

SYSTEM = list(range(5 * BLOCK))
QUESTION, ANSWER, NEXT = [7] * 11, [9] * 20, [3] * 12


def test_a_turn_goes_to_where_the_last_one_was_written() -> None:
    known = Conversations()
    known.note("a", [*SYSTEM, *QUESTION], ANSWER, "one")
    turn = [*SYSTEM, *QUESTION, *ANSWER, *NEXT]
    assert known.find("a", turn) == "one"
    known.note("a", turn, ANSWER, "two")
    assert known.find("a", [*turn, *ANSWER, *NEXT]) == "two"


def test_a_shared_system_prompt_draws_nobody() -> None:
    known = Conversations()
    known.note("a", [*SYSTEM, *QUESTION], ANSWER, "one")
    assert known.find("a", [*SYSTEM, *NEXT, *ANSWER]) == ""
    assert known.find("a", [*SYSTEM, *QUESTION]) == ""


def test_owners_learn_nothing_of_each_other() -> None:
    known = Conversations()
    known.note("a", QUESTION, ANSWER, "one")
    assert known.find("b", [*QUESTION, *ANSWER]) == ""


def test_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    known = Conversations(most_places=4)
    known.note("a", [1], [1] * BLOCK, "one")
    known.note("a", [2], [2] * 3 * BLOCK, "two")
    assert known.find("a", [1] * BLOCK) == "one"
    known.note("a", [4], [4] * BLOCK, "three")
    assert len(known) == 4
    assert known.find("a", [1] * BLOCK) == "one"
    assert known.find("a", [2] * BLOCK) == ""
