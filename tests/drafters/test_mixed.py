"""Several drafters: the right one is asked, trees are merged, and each learns what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from drafting import Quiet, TextTurn

import forerun as fr
from forerun.base.errors import InputError
from forerun.drafters import Guess, Mixed, Model, NGram, Outcome, Recycling, Suffix, Turn
from forerun.drafters.base import Prices
from forerun.drafters.mixed import merge
from forerun.drafters.track_record import MOST_LOST, Record, worth_of
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


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_the_one_with_most_tokens_per_second_is_asked(rule: str) -> None:
    """Two right tokens for nothing beat four for two seconds; the others are tried now and then.

    Under `match` one that takes no time is asked anyway: its guess may be better than usual.
    """
    clock = Clock()
    quick, slow = Teller("quick", 2, 0.0, clock), Teller("slow", 4, 2.0, clock)
    wrong = Teller("wrong", 0, 0.0, clock)
    answer = run(clock, wrong, slow, quick, rule=rule)
    assert quick.asked > 0.7 * answer.stats.rounds
    assert 0 < slow.asked < 0.2 * answer.stats.rounds
    assert answer.stats.tokens_per_round > 2.6
    assert rule == "match" or 0 < wrong.asked < 0.25 * answer.stats.rounds


def entered(mixed: Mixed) -> Any:
    """The state of an engine with one request."""
    state = mixed.start(COUNT, 1, 2000)
    mixed.enter(state, 0, [0], 1)
    return state


def outcomes_of(mixed: Mixed, state: Any, turn: Turn, right: int) -> None:
    """A round in which so many tokens of whatever is proposed are kept."""
    (guess,) = mixed.propose(state, [turn], shared_noise=True)
    path = list(range(min(right, len(guess.tokens))))
    mixed.observe(state, [Outcome(turn.row, len(path), (), path)])


@pytest.mark.parametrize(("seconds", "pays"), [(0.1, True), (3.0, False)])
def test_one_that_costs_more_than_it_gives_is_all_but_left_out(seconds: float, pays: bool) -> None:
    """Two tokens kept are worth two seconds, less what asking and four slots take."""
    clock = Clock()
    silent, dear = Teller("silent", -1, 0.0, clock), Teller("dear", 2, seconds, clock)
    mixed = Mixed(silent, dear, clock=clock)
    prices = Prices(token=1.0, slot=0.1)
    for _ in range(3):  # what one call has learned serves the next
        state = entered(mixed)
        before = dear.asked
        for position in range(64):
            turn = Turn(0, 4, fr.Sampling(seed=1), 1, position, prices=prices)
            outcomes_of(mixed, state, turn, right=2)
        asked = dear.asked - before
    assert silent.asked > 0.9 * 3 * 64
    assert asked == 64 if pays else 0 < asked <= 8


def test_what_the_engine_cut_off_is_not_charged() -> None:
    """Of four guesses two went into the pass: what was not scored has cost nothing."""
    gains, prices = [], Prices(token=1.0, slot=0.25)
    for num_scored in (None, 2):
        clock = Clock()
        mixed = Mixed(
            Teller("teller", 2, 0.0, clock), Teller("silent", -1, 0.0, clock), clock=clock
        )
        state = entered(mixed)
        turn = Turn(0, 4, fr.Sampling(seed=1), 1, 0, prices=prices)
        mixed.propose(state, [turn], shared_noise=True)
        mixed.observe(state, [Outcome(0, 2, (), [0, 1], num_scored=num_scored)])
        gains.append(state.records(0)[0].gain.tokens)
    assert gains[1] - gains[0] == pytest.approx(0.5)


class Reader(Teller):
    """Takes a tenth of a second for every token that it has not read yet."""

    num_unread = 0

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        super().enter(state, row, tokens, num_prompt)
        self.num_unread = len(tokens)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        self.clock.now += 0.1 * self.num_unread
        self.num_unread = 0
        return super().propose(state, turns, shared_noise=shared_noise)


@pytest.mark.parametrize(("room", "pays"), [(60, True), (8, False), (None, True)])
def test_a_long_text_is_read_only_where_the_rest_of_the_answer_can_pay(
    room: int | None, pays: bool
) -> None:
    """Reading 100 tokens costs ten; an ask saves about 1.6, in half of the room on average."""
    clock = Clock()
    quick, reader = Teller("quick", -1, 0.0, clock), Reader("reader", 2, 0.0, clock)
    mixed = Mixed(quick, reader, clock=clock)
    prices = Prices(token=1.0, slot=0.1)

    def answer(num_prompt: int, room: int | None) -> int:
        """How often the reader was asked in an answer of eight rounds."""
        state = mixed.start(COUNT, 1, 200)
        mixed.enter(state, 0, [0] * num_prompt, num_prompt)
        before = reader.asked
        for position in range(8):
            turn = Turn(0, 4, fr.Sampling(seed=1), 1, position, prices=prices, room=room)
            outcomes_of(mixed, state, turn, right=2)
        mixed.close(state)
        return reader.asked - before

    assert [answer(length, 60) for length in (1, 100, 100)] == [8, 8, 8]  # what reading costs
    assert answer(100, room) == (8 if pays else 0)
    assert answer(30, room) == 8  # a short text is read in any case
    if not pays:  # half a percent of the turns may be lost
        assert 1 <= sum(answer(100, room) for _ in range(300)) <= 8


def test_without_prices_everyone_is_heard() -> None:
    clock = Clock()
    silent, dear = Teller("silent", -1, 0.0, clock), Teller("dear", 0, 9.0, clock)
    answer = run(clock, silent, dear)
    assert dear.asked == answer.stats.rounds


def test_a_prompt_that_takes_long_does_not_make_drafting_look_cheap() -> None:
    """The first round reads the prompt; rounds after it take a second, and a dear ask two."""
    clock = Clock()
    quick, dear = Teller("quick", 2, 0.0, clock), Teller("dear", 4, 2.0, clock)
    mixed = Mixed(quick, dear, clock=clock)
    state = entered(mixed)
    for position in range(40):
        turn = Turn(0, 4, fr.Sampling(seed=1), 1, position)
        mixed.propose(state, [turn], shared_noise=True)
        clock.now += 500.0 if position == 0 else 0.2
        mixed.observe(state, [Outcome(0, 2, (), [0, 1])])
    assert dear.asked < 10


def test_the_silent_pass_the_turn_on() -> None:
    clock = Clock()
    silent, good = Teller("silent", -1, 0.0, clock), Teller("good", 4, 0.0, clock)
    answer = run(clock, silent, good)
    assert answer.stats.tokens_per_round > 4.5
    assert good.asked == answer.stats.rounds


def test_one_that_gets_worse_is_found_out() -> None:
    clock = Clock()
    first, second = Teller("first", 4, 0.0, clock), Teller("second", 3, 0.0, clock)
    mixed = Mixed(first, second, clock=clock)
    for _ in range(2):
        answer = fr.generate(COUNT, [0], drafter=mixed, draft_length=4, max_new_tokens=400)
        first.right = 0
    assert answer.stats.tokens_per_round > 3


def test_trees_are_merged_and_everyone_hears_of_its_own_part() -> None:
    clock = Clock()
    two, four = Teller("two", 2, 0.0, clock), Teller("four", 4, 0.0, clock)
    answer = run(clock, two, four, tree=12, max_new_tokens=50)
    assert answer.stats.tokens_per_round == 5
    assert two.paths[0] == [0, 1]
    assert four.paths[0] == [0, 1, 2, 3]


def test_merging_by_hand() -> None:
    """Equal beginnings are one path; what promises most is taken; parents come before children."""
    one = Guess([1, 2, 3], values=[0.9, 0.5, 0.1])
    other = Guess([1, 4, 5], parents=[-1, 0, -1], values=[0.8, 0.6, 0.3])
    fresh = [Record(), Record()]
    merged, nodes = merge([one, other], fresh, budget=4)
    assert merged.tokens == [1, 4, 2, 5]
    assert merged.parents == [-1, 0, 0, -1]
    assert nodes == [{0: 0, 2: 1}, {0: 0, 1: 1, 3: 2}]


MAKERS: list[Callable[[], Any]] = [NGram, Suffix, Recycling, lambda: Model(COUNT)]


@pytest.mark.parametrize("tree", [None, 10])
def test_real_drafters_together(tree: int | None) -> None:
    table = TableModel.random(vocab_size=6, order=2, seed=1)
    how: dict[str, Any] = {"max_new_tokens": 30, "sampling": fr.Sampling(seed=3)}
    prompts = [[1, 2], [3], [4, 5, 1, 2]]
    plain = fr.generate(table, prompts, drafter=None, **how)
    drafter = Mixed(NGram(), Suffix(), Recycling(), Model(table))
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


def test_a_drafter_is_left_out_after_several_poor_guesses_and_not_after_one() -> None:
    gain, is_asked = Record().gain, []
    for tokens in (-1.0, *[-0.2] * 60):
        gain.learn(tokens)
        is_asked.append(gain.mean > -MOST_LOST)
    assert is_asked[0]
    assert not is_asked[-1]


def test_a_drafter_gets_another_chance_with_another_request_unless_it_never_pays() -> None:
    gain = Record().gain
    for _ in range(60):
        gain.learn(-0.2)
    assert gain.mean < -MOST_LOST
    gain.start_afresh()
    assert gain.mean > -MOST_LOST
    for _ in range(400):
        gain.learn(-0.2)
    gain.start_afresh()
    assert gain.mean < -MOST_LOST


class Stating(Teller):
    """States the same chance for every guess."""

    def __init__(self, name: str, right: int, value: float, clock: Clock) -> None:
        super().__init__(name, right, 0.0, clock)
        self.value = value

    def guess(self, turn: TextTurn) -> Guess:
        tokens = super().guess(turn).tokens[:1]
        return Guess(tokens, values=[self.value] * len(tokens))


def test_what_each_drafter_states_is_corrected_by_its_own_record() -> None:
    """One is right half of the time and says 0.9, the other always and says 0.6."""
    clock = Clock()
    boaster, modest = Stating("boaster", 0, 0.9, clock), Stating("modest", 1, 0.6, clock)
    mixed = Mixed(boaster, modest, clock=clock)
    state = entered(mixed)
    prices = Prices(token=1.0, slot=0.1)
    chosen = []
    for position in range(400):
        turn = Turn(0, 4, fr.Sampling(seed=1), 1, position, prices=prices)
        (guess,) = mixed.propose(state, [turn], shared_noise=True)
        (share,) = state.shares[0]
        chosen.append((share.who, guess.values))
        path = [0] if share.who == 1 or position % 2 else []
        mixed.observe(state, [Outcome(0, len(path), (), path, num_scored=1)])
    assert chosen[0] == (0, [0.9]), "believed at first"
    who, values = chosen[-1]
    assert who == 1
    assert values is not None
    assert values[0] > 0.8
    assert state.records(0)[0].shift < -1 < 0.8 < state.records(0)[1].shift


def test_the_worth_of_a_chain_is_that_of_its_best_beginning() -> None:
    prices = Prices(token=2.0, slot=9.0, added=(0.5, 1.5, 4.0))
    assert worth_of([0.9, 0.6, 0.1], prices) == pytest.approx(0.9 + 0.6 - 0.75)
    assert worth_of([0.9, 0.2, 0.1], prices) == pytest.approx(0.9 - 0.25)
    assert worth_of([0.1], prices) == pytest.approx(0.1 - 0.25)
    assert worth_of([0.9, 0.2], None) == pytest.approx(1.1)
    assert worth_of([], prices) == 0


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
