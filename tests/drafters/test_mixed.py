"""Several drafters: the right one is asked, trees are merged, and each learns what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
from drafting import Quiet, TextTurn

import forerun as fr
from clocks import StillClock
from forerun.base.errors import InputError
from forerun.drafters import Guess, Mixed, Model, NGram, Outcome, Suffix, Turn
from forerun.drafters.base import Part, Prices
from forerun.drafters.calibration import calibrated, worth_of
from forerun.drafters.mixed import Bid, merge
from forerun.models import TableModel

COUNT = TableModel(5, 1, {(): [1, 0, 0, 0, 0]} | {(i,): row for i, row in enumerate(
    [[0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
)})  # fmt: skip


class Clock:
    """Time that passes only when a drafter or a round says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Teller(Quiet):
    """Guesses so many tokens right, takes so long, and counts how often it is asked."""

    def __init__(self, name: str, right: int, seconds: float, clock: Clock) -> None:
        self.name, self.right, self.seconds, self.clock = name, right, seconds, clock
        self.asked = 0
        self.paths: list[list[int]] = []

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        self.clock.now += self.seconds
        self.asked += len(turns)
        return super().propose(state, turns, shared_noise=shared_noise)

    def guess(self, turn: TextTurn) -> Guess:
        last, count = turn.tokens[-1], min(turn.height, 4)
        tokens = [(last + 1 + i + (i >= self.right)) % 5 for i in range(count)]
        return Guess(tokens if self.right >= 0 else [])

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        super().observe(state, outcomes)
        self.clock.now += 1.0 / 3  # a round of three drafters takes a second
        self.paths += [list(outcome.path) for outcome in outcomes]


def run(clock: Clock, *drafters: Any, **how: Any) -> fr.Generation:
    how = {"max_new_tokens": 200, "draft_length": 4, "sampling": fr.Sampling(seed=1)} | how
    answer: fr.Generation = fr.generate(COUNT, [0], drafter=Mixed(*drafters, clock=clock), **how)
    assert answer.stats.notes == []
    return answer


def entered(mixed: Mixed) -> Any:
    """The state of an engine with one request."""
    state = mixed.start(COUNT, 1, 2000)
    mixed.enter(state, 0, [0], 1)
    return state


def turn(*parts: Part, scoring: Sequence[float] = (0.1, 0.2, 0.3, 0.4)) -> Turn:
    return Turn(0, 4, fr.Sampling(seed=1), 1, 0, prices=Prices(scoring, parts))


def test_the_next_one_is_asked_if_the_guess_at_hand_promises_less_than_it() -> None:
    """Four guesses of which none is stated promise 0.6 + 0.36 + ... less their slots: 0.9."""
    for enough, is_asked in ((-inf, False), (0.8, False), (1.0, True), (inf, True)):
        clock = Clock()
        quick, slow = Teller("quick", 2, 0.1, clock), Teller("slow", 4, 2.0, clock)
        mixed = Mixed(slow, quick, clock=clock)
        (guess,) = mixed.propose(
            entered(mixed), [turn(Part(1), Part(0, enough=enough))], shared_noise=True
        )
        assert [ask.part for ask in guess.asked] == [1, 0][: 1 + is_asked]
        assert [ask.seconds for ask in guess.asked] == pytest.approx([0.1, 2.0][: 1 + is_asked])
        assert guess.asked[0].worth == pytest.approx(0.6 + 0.36 + 0.216 - 0.3, abs=0.04)
        assert guess.parts == [1] * 4
        assert slow.asked == is_asked


def test_without_prices_everyone_is_asked_and_the_best_is_taken() -> None:
    clock = Clock()
    silent, good = Teller("silent", -1, 0.0, clock), Teller("good", 4, 9.0, clock)
    answer = run(clock, silent, good)
    assert silent.asked == good.asked == answer.stats.rounds
    assert answer.stats.tokens_per_round > 4.5


def test_under_a_rule_that_divides_the_first_guess_is_taken() -> None:
    """Nothing may be chosen by what was drawn: the others are asked only if it has none."""
    clock = Clock()
    silent, wrong = Teller("silent", -1, 0.0, clock), Teller("wrong", 0, 0.0, clock)
    good = Teller("good", 4, 0.0, clock)
    answer = run(clock, silent, wrong, good, rule="ratio")
    assert wrong.asked >= answer.stats.rounds - 1
    assert good.asked <= 1  # where the answer has no room for a guess
    assert answer.stats.accepted == 0


def test_what_each_one_states_is_corrected_by_its_own_shift() -> None:
    """One says 0.9 and is wrong mostly, the other says 0.6 and is right."""
    clock = Clock()
    boaster, modest = Stating("boaster", 0, 0.9, clock), Stating("modest", 1, 0.6, clock)
    mixed = Mixed(boaster, modest, clock=clock)
    told = turn(Part(0, shift=-3.0), Part(1, shift=1.0))
    (guess,) = mixed.propose(entered(mixed), [told], shared_noise=True)
    assert guess.parts == [1]
    assert guess.values == pytest.approx([calibrated(0.6, 1.0)])


class Stating(Teller):
    """States the same chance for its one guess."""

    def __init__(self, name: str, right: int, value: float, clock: Clock) -> None:
        super().__init__(name, right, 0.0, clock)
        self.value = value

    def guess(self, turn: TextTurn) -> Guess:
        tokens = super().guess(turn).tokens[:1]
        return Guess(tokens, values=[self.value] * len(tokens))


@pytest.mark.parametrize("is_good", [True, False])
def test_one_that_does_not_pay_costs_next_to_nothing(
    is_good: bool, still_clock: StillClock
) -> None:
    """A round takes a second and each guess a tenth; a dear drafter takes half a second."""

    class Slow(TableModel):
        def score(self, state: Any, rows: Any, tokens: Any, num_logits: Any) -> Any:
            still_clock.pass_by(0.9 + 0.1 * sum(num_logits))
            return super().score(state, rows, tokens, num_logits)

    class Timed(Stating):
        def propose(self, *args: Any, **how: Any) -> list[Guess]:
            still_clock.pass_by(0.5)
            return super().propose(*args, **how)

    clock = Clock()
    silent = Teller("silent", -1, 0.0, clock)
    dear = Timed("dear", 1 if is_good else 0, 0.9, clock)
    mixed, target = Mixed(dear, silent), Slow(5, 1, COUNT.table)
    answers = [fr.generate(target, [0], drafter=mixed, max_new_tokens=500) for _ in range(8)]
    seconds = sum(answer.stats.seconds.total for answer in answers)
    late = sum(answer.stats.seconds.total for answer in answers[4:])
    asked = sum(answer.stats.num_asked for answer in answers)
    if is_good:  # two tokens in 1.6 seconds
        assert seconds < 0.85 * 4000
        assert dear.asked > 0.8 * asked
    else:
        assert seconds < 1.025 * 4000
        assert late < 1.012 * 2000
        assert 10 < dear.asked < 200


def test_trees_are_merged_and_everyone_hears_of_its_own_part() -> None:
    clock = Clock()
    two, four = Teller("two", 2, 0.0, clock), Teller("four", 4, 0.0, clock)
    answer = run(clock, two, four, tree=12, max_new_tokens=50)
    assert answer.stats.tokens_per_round == 5
    assert two.paths[0] == [0, 1]
    assert four.paths[0] == [0, 1, 2, 3]


def test_merging_by_hand() -> None:
    """Equal beginnings are one path; what promises most is taken; parents come before children."""
    one = Bid(0, Guess([1, 2, 3]), [0.9, 0.5, 0.1])
    other = Bid(1, Guess([1, 4, 5], parents=[-1, 0, -1]), [0.8, 0.6, 0.3])
    merged = merge([one, other], budget=4)
    assert merged.tokens == [1, 4, 2, 5]
    assert merged.parents == [-1, 0, 0, -1]
    assert merged.parts == [0, 1, 0, 1]
    assert (one.nodes, other.nodes) == ({0: 0, 2: 1}, {0: 0, 1: 1, 3: 2})


MAKERS: list[Callable[[], Any]] = [NGram, Suffix, lambda: Model(COUNT)]


@pytest.mark.parametrize("tree", [None, 10])
def test_real_drafters_together(tree: int | None) -> None:
    table = TableModel.random(vocab_size=6, order=2, seed=1)
    how: dict[str, Any] = {"max_new_tokens": 30, "sampling": fr.Sampling(seed=3)}
    prompts = [[1, 2], [3], [4, 5, 1, 2]]
    plain = fr.generate(table, prompts, drafter=None, **how)
    drafter = Mixed(NGram(), Suffix(), Model(table))
    how |= {"drafter": drafter, "tree": tree, "draft_length": 5, "batch_size": 2}
    found = fr.generate(table, prompts, **how)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert all(each.stats.notes == [] for each in found)
    assert sum(each.stats.accepted for each in found) > 20


def test_a_target_that_has_no_hash_is_served() -> None:
    class Unhashable(TableModel):
        __hash__ = None  # type: ignore[assignment]

    target = Unhashable(5, 1, COUNT.table)
    answer = fr.generate(target, [0], drafter=Mixed(NGram(), Suffix()), max_new_tokens=30)
    assert answer.tokens == fr.generate(COUNT, [0], drafter=None, max_new_tokens=30).tokens
    assert answer.stats.notes == []


def test_nothing_to_mix() -> None:
    with pytest.raises(fr.InputError, match="no drafter to mix"):
        Mixed()


def test_a_list_of_drafters_means_the_same() -> None:
    for mixed in (
        Mixed(NGram(), "suffix"),
        Mixed([NGram(), "suffix"]),
        Mixed((NGram(),), "suffix"),
    ):
        assert mixed.name == "ngram+suffix"
        assert len(mixed.drafters) == 2
    assert Mixed([NGram()]).name == Mixed(NGram()).name == "ngram"
    with pytest.raises(InputError, match="no drafter to mix"):
        Mixed([])


def test_the_worth_of_guesses_is_that_of_their_best_beginning() -> None:
    assert worth_of([0.9, 0.6, 0.1], [0.25, 0.75, 2.0]) == pytest.approx(0.9 + 0.6 - 0.75)
    assert worth_of([0.9, 0.2, 0.1], [0.25, 0.75, 2.0]) == pytest.approx(0.9 - 0.25)
    assert worth_of([0.1], [0.25]) == pytest.approx(0.1 - 0.25)
    assert worth_of([], []) == 0
