"""Suffix lookup against counting by hand, and that its cost and memory stay what they are."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import forerun as fr
from cases import for_all
from forerun.drafters import Outcome, Suffix, Turn
from forerun.drafters.suffix import SuffixTrie, read

TEXTS = [[1, 2, 3, 1, 2, 4, 1, 2, 3], [5, 1, 2, 3, 5], [2, 2, 2, 2]]


def occurrences(texts: list[list[int]], wanted: list[int]) -> Counter[int]:
    """What followed each occurrence of some tokens."""
    size = len(wanted)
    return Counter(
        text[end]
        for text in texts
        for end in range(size, len(text))
        if text[end - size : end] == wanted
    )


def filled(texts: list[list[int]], depth: int) -> SuffixTrie:
    trie = SuffixTrie(depth)
    for text in texts:
        trie.add(text)
        trie.end_text()
    return trie


@for_all("seed", range(20))
def test_shares_are_those_of_a_count_by_hand(seed: int) -> None:
    """Every text of up to `depth` tokens, over several texts with repeats and loops."""
    generator = random.Random(seed)
    texts = [
        [generator.randrange(3) for _ in range(generator.randint(1, 30))]
        for _ in range(generator.randint(1, 5))
    ]
    depth = generator.randint(2, 6)
    trie = filled(texts, depth)
    for size in range(1, depth):
        for text in texts:
            for end in range(size, len(text) + 1):
                wanted = text[end - size : end]
                (*_, cursor) = read(trie, [], wanted)
                counts = occurrences(texts, wanted)
                found = {token: share for token, share, _ in trie.sequels(cursor)}
                total = sum(counts.values())
                assert found == {token: count / total for token, count in counts.items()}


def test_a_reader_follows_every_suffix() -> None:
    trie = filled(TEXTS, 8)
    assert len(read(trie, [], [9])) == 0
    assert len(read(trie, [], [9, 1, 2, 4])) == 3, "three suffixes of it occurred"
    step_by_step: Any = []
    for token in [9, 1, 2, 4]:
        step_by_step = read(trie, step_by_step, [token])
    assert step_by_step == read(trie, [], [9, 1, 2, 4])


def test_nothing_follows_across_texts() -> None:
    trie = filled([[1, 2], [3, 4]], 4)
    assert trie.sequels(read(trie, [], [2])[0]) == []
    assert read(trie, [], [2, 3]) == read(trie, [], [3])


def propose(
    drafter: Suffix,
    state: Any,
    text: list[int],
    budget: int = 4,
    row: int = 0,
    depth: int | None = None,
    shared_noise: bool = True,
) -> fr.drafters.Guess:
    """The guess after a text, of which the drafter is told what it does not know yet."""
    known = state.rows[row].text
    if known and text[: len(known)] == known:
        drafter.observe(state, [Outcome(row, 0, text[len(known) :])])
    else:
        drafter.enter(state, row, text, 1)
    turn = Turn(row, budget, fr.Sampling(), 0, 0, depth)
    return drafter.propose(state, [turn], shared_noise=shared_noise)[0]


def test_a_chain_takes_the_likeliest_way_and_stops_in_time() -> None:
    drafter = Suffix(worth=0.2)
    state = drafter.start(None, 1, 100)  # type: ignore[arg-type]
    text = [7, 8, 9, 5, 0, 7, 8, 9, 5, 0, 7, 8, 9, 6, 0, 7, 8, 9]
    guess = propose(drafter, state, text, 6)
    assert guess.tokens[:2] == [5, 0]
    assert guess.values is not None
    assert guess.values[0] == pytest.approx(2 / 3 * 3 / 5), "2 of 3 times, after a match of 3"
    assert all(value >= 0.2 for value in guess.values)
    assert len(guess.tokens) < 6


@pytest.mark.parametrize("depth", [None, 6])
def test_guesses_below_what_a_turn_calls_worth_it_are_left_out(depth: int | None) -> None:
    """A match of four tokens is trusted with 4/6, and each further one a little more."""
    drafter, text = Suffix(), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]
    state = drafter.start(None, 1, 100)  # type: ignore[arg-type]
    drafter.enter(state, 0, text, len(text))
    for worth, count in [(0.3, 3), (0.4, 2), (0.6, 1), (0.7, 0)]:
        turn = Turn(0, 8, fr.Sampling(), 0, 0, depth, worth=worth)
        (guess,) = drafter.propose(state, [turn], shared_noise=True)
        assert guess.tokens == [5, 6, 7, 8][:count]


def test_a_tree_holds_both_ways() -> None:
    drafter = Suffix(worth=0.05)
    state = drafter.start(None, 1, 100)  # type: ignore[arg-type]
    text = [7, 8, 9, 5, 0, 7, 8, 9, 5, 0, 7, 8, 9, 6, 0, 7, 8, 9]
    guess = propose(drafter, state, text, 6, depth=3)
    assert guess.parents is not None
    first = [t for t, parent in zip(guess.tokens, guess.parents, strict=True) if parent == -1]
    assert first == [5, 6]
    assert guess.values == sorted(guess.values or [], reverse=True), "best first"


def test_earlier_requests_are_remembered_under_match_only() -> None:
    drafter = Suffix()
    state = drafter.start(None, 2, 100)  # type: ignore[arg-type]
    earlier = [1, 4, 5, 6, 7, 8, 9]
    propose(drafter, state, earlier)
    drafter.release(state, 0)
    assert propose(drafter, state, [3, 4, 5, 6], row=1).tokens == [7, 8, 9]
    assert propose(drafter, state, [3, 4, 5, 6], row=0, shared_noise=False).tokens == []


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    drafter = Suffix(max_nodes=400, max_match=4)
    state = drafter.start(None, 1, 100)  # type: ignore[arg-type]
    generator = random.Random(0)
    texts = [[1] + [generator.randrange(10, 1000) for _ in range(40)] for _ in range(60)]
    for text in texts:
        propose(drafter, state, text)
        drafter.release(state, 0)
        assert sum(trie.num_nodes for trie in state.past[0]) <= 400 + 200
    young, old = texts[-1], texts[0]
    assert propose(drafter, state, [1, *young[1:8]]).tokens == young[8:12]
    drafter.release(state, 0)
    assert propose(drafter, state, [1, *old[1:8]]).tokens == []


def test_owners_share_the_bound_and_who_holds_most_gives_way() -> None:
    drafter = Suffix(max_nodes=400, max_match=4)
    state = drafter.start(None, 1, 100)  # type: ignore[arg-type]
    generator = random.Random(0)

    def answer(owner: str, count: int) -> list[int]:
        text = [1] + [generator.randrange(10, 1000) for _ in range(count)]
        drafter.assign(state, 0, owner)
        propose(drafter, state, text)
        drafter.release(state, 0)
        return text

    short = answer("modest", 20)
    for _ in range(20):
        answer("greedy", 40)
        sizes = [sum(trie.num_nodes for trie in tries) for tries in state.past.memories.values()]
        assert sum(sizes) <= 400
    assert sizes[1] > 0
    drafter.assign(state, 0, "modest")
    assert propose(drafter, state, [1, *short[1:8]]).tokens == short[8:12]


def test_a_long_text_of_one_request_is_bounded_too() -> None:
    drafter = Suffix(max_nodes=300)
    state = drafter.start(None, 1, 100)  # type: ignore[arg-type]
    generator = random.Random(0)
    text = [1]
    for _ in range(100):
        text += [generator.randrange(1000) for _ in range(20)]
        propose(drafter, state, text)
    assert state.rows[0].trie.num_nodes < 2 * 300
    assert len(propose(drafter, state, [*text, *text[-30:-20]]).tokens) == 4


def steps(drafter: Suffix, history: int, repeats: bool) -> int:
    """Python-level steps that 200 more tokens cost after so much history: no clock, no noise."""
    import sys

    generator = random.Random(1)
    text = [0]
    while len(text) < history:
        text += text[-40:] if repeats and len(text) % 3 else [generator.randrange(500)]
    state = drafter.start(None, 1, history)  # type: ignore[arg-type]
    propose(drafter, state, text)
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    for _ in range(20):
        text += [generator.randrange(500) for _ in range(10)]
        sys.settrace(count)
        propose(drafter, state, text)
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("repeats", [False, True])
def test_cost_does_not_grow_with_the_history(repeats: bool) -> None:
    drafter = Suffix(max_nodes=10**7)
    short, long = (steps(drafter, size, repeats) for size in (500, 20_000))
    assert long < 2 * short


@pytest.mark.parametrize(
    "how", [{"max_match": 0}, {"worth": 0.0}, {"worth": 1.0}, {"max_nodes": 1}]
)
def test_settings_out_of_range(how: dict[str, Any]) -> None:
    with pytest.raises(fr.InputError, match="A setting of Suffix is out of range"):
        Suffix(**how)
