"""The draft policy in a simulated world where the best fixed length is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import Quiet, Saying

import forerun as fr
from clocks import StillClock
from forerun import rules
from forerun.drafters import Guess
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.proposal import Drafted, Proposal
from forerun.engine.steering import policy as policy_module
from forerun.engine.steering.draft_planning import POLICIES, policy_key
from forerun.engine.steering.measurements import NUM_TIMED, Curve
from forerun.engine.steering.policy import Choice, PayingPolicy
from forerun.generation.intake import make_request

PASS = {1: 8.0, 2: 10.0, 3: 10.5, 4: 12.0, 5: 15.0, 6: 15.5, 7: 17.0, 8: 18.0, 9: 20.0}


def left_by(
    target: Any, drafter: Any, *, num_rows: int = 1, rule: str | None = None
) -> PayingPolicy:
    """What the last engine of that pair has learned; a policy that knows nothing if none did."""
    key = policy_key(drafter, num_rows, False, rule)
    policy = POLICIES.take(target, key) or PayingPolicy()
    POLICIES.put(policy, target, key)
    assert isinstance(policy, PayingPolicy)
    return policy


def request(num_tokens: int = 1, most: int = 99) -> Any:
    """What a policy reads of a request; its prompt has been read."""
    return SimpleNamespace(
        tokens=[0] * num_tokens,
        stats=SimpleNamespace(rounds=2),
        sampling=SimpleNamespace(temperature=0.0),
        most_guesses=lambda length: min(length, most),
    )


def trimmed(choice: Choice, drafts: Sequence[Proposal]) -> Drafted:
    """What an executor makes of the guesses that a choice led to."""
    height = max(draft.height for draft in drafts)
    kept = drafts if choice.tariff is None else choice.tariff.trim(drafts)
    asked = [() if length else None for length in choice.lengths]
    return Drafted(kept, height, choice.is_trial, asked)


def worth(choice: Choice) -> float:
    """The lowest stated chance that is wanted."""
    return choice.prices[0].parts[0].worth if choice.prices else 0.0  # type: ignore[union-attr]


def goes_on(choice: Choice) -> Sequence[float]:
    """The lowest stated chances of guesses in a row after which another guess is wanted."""
    return choice.prices[0].parts[0].goes_on if choice.prices else ()  # type: ignore[union-attr]


def step(
    policy: PayingPolicy,
    rooms: Sequence[int],
    guess: Callable[[int, int, float], tuple[Proposal, int]],
    *,
    draft: float = 0.6,
    slow: float = 0.0,
    asking: float = 0.0,
    passes: Callable[[int], float] = PASS.__getitem__,
    requests: Sequence[Any] | None = None,
    is_timed: bool = True,
) -> tuple[list[int], float]:
    """A round: lengths of the drafts in the pass, and its seconds without the slowness.

    guess: row, length and worth to the guess, and how many of its tokens are right.
    """
    rows, requests = range(len(rooms)), requests or [request() for _ in rooms]
    choice = policy.choose(rows, requests, rooms, is_timed=is_timed)
    guesses = [guess(row, length, worth(choice)) for row, length in enumerate(choice.lengths)]
    drafted, cost = Drafted([proposal for proposal, _ in guesses]), 0.0
    if any(choice.lengths):
        drafted = trimmed(choice, drafted.proposals)
        cost = asking + draft * (drafted.height or 0)
    drafts = drafted.proposals
    paths = [
        range(min(right, len(each.tokens)))
        for each, (_, right) in zip(drafts, guesses, strict=True)
    ]
    lengths = [len(each.tokens) for each in drafts]
    seconds = passes(len(rooms) + sum(lengths))
    spent = [cost, seconds + slow, 0.3]
    policy.learn(rows, requests, drafted, paths, spent, reads=not is_timed)
    return lengths, seconds + cost


def entered(num_rows: int = 1, **how: Any) -> PayingPolicy:
    policy = PayingPolicy(**how)
    for row in range(num_rows):
        policy.enter(row, request())
    return policy


def test_a_row_keeps_to_its_own_limit_and_counts_in_the_price_of_a_pass() -> None:
    policy, limits = entered(3), [0, 2, 99]
    requests = [request(most=most) for most in limits]
    guess = lambda _, count, __: (Proposal([0] * count), count)  # noqa: E731
    seen = [
        step(policy, [8] * 3, guess, requests=requests, draft=0.01, passes=float)[0]
        for _ in range(30)
    ]
    assert [max(row) for row in zip(*seen, strict=True)] == [0, 2, 8]
    tariff = policy.choose(range(3), requests, [8] * 3).tariff
    assert tariff is not None
    passes = Curve(((1, 1.0), (2, 1.01), (3, 1.02), (4, 9.0), (20, 99.0)))
    steep = replace(tariff, token=0.5, passes=passes, tries=inf)
    drafts = [Proposal([0, 0]), Proposal([0, 0])]
    assert [len(draft.tokens) for draft in steep.among([1, 2]).trim(drafts)] == [0, 0]
    alone = replace(steep, survivals=steep.survivals[1:])
    assert any(draft.tokens for draft in alone.trim(drafts)), "beside nobody a guess pays"


def play(
    rate: Callable[[int], float],
    num_rounds: int,
    *,
    length: int | None = None,
    policy: PayingPolicy | None = None,
    seed: int = 0,
    noise: float = 0.2,
) -> float:
    """Tokens per second of rounds with one request; length None asks the policy."""
    generator = random.Random(seed)
    policy = policy or PayingPolicy()
    policy.enter(0, request())
    tokens, seconds = 0, 0.0
    for number in range(num_rounds):
        right = 0
        while right < 8 and generator.random() < rate(number):
            right += 1
        slow = generator.expovariate(1) * noise * 10
        if length is None:
            guess = lambda _, count, __, right=right: (Proposal([0] * count), right)  # noqa: E731
            lengths, spent = step(policy, [8], guess, asking=1.0, slow=slow)
        else:
            lengths, spent = [length], PASS[1 + length] + (0.6 * length + 1.0 if length else 0.0)
        tokens += min(right, lengths[0]) + 1
        seconds += spent
    return tokens / seconds


@pytest.mark.parametrize(
    "acceptance",
    [0.02, 0.5, 0.9, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (0.3, 0.7))],
)
def test_it_comes_close_to_the_best_fixed_length(acceptance: float) -> None:
    rate: Callable[[int], float] = lambda _: acceptance  # noqa: E731
    best = max(play(rate, 3000, length=length) for length in range(9))
    assert play(rate, 3000) > 0.95 * best


def test_where_drafts_fail_it_all_but_stops_drafting() -> None:
    plain = play(lambda _: 0.0, 2000, length=0)
    assert play(lambda _: 0.0, 2000) > 0.98 * plain


@pytest.mark.parametrize("values", [None, [0.9] * 3])
def test_beside_prompts_that_are_being_read_nothing_is_tried(values: list[float] | None) -> None:
    """One round of 17 can be timed: drafts that fail are found out in those, and cost no more."""
    policy, seconds, plain = entered(8), 0.0, 0.0
    for number in range(3000):
        is_timed = number % 17 == 16

        def guess(_: int, length: int, worth: float) -> tuple[Proposal, int]:
            return stating(values, 0)(0, length, worth) if values else (Proposal([0] * length), 0)

        lengths, took = step(
            policy, [8] * 8, guess, asking=1.0, is_timed=is_timed, passes=lambda size: 5.0 + size
        )
        assert is_timed or not any(lengths)
        seconds, plain = seconds + took, plain + 13.0
    assert seconds < 1.01 * plain
    assert policy.ledger.drafted.below > 0, "it was tried"


def test_drafts_that_pay_go_on_beside_prompts_that_are_being_read() -> None:
    policy, drafted = entered(), 0
    for number in range(1000):
        is_timed = number % 17 == 16
        lengths, _ = step(policy, [8], stating([0.9] * 3, right=3), is_timed=is_timed)
        drafted += not is_timed and lengths[0] > 0
    assert drafted > 700


def test_it_follows_a_text_that_changes() -> None:
    """Copying, then prose, then copying: better than any fixed length can be."""
    rate: Callable[[int], float] = lambda n: 0.95 if (n // 500) % 2 == 0 else 0.1  # noqa: E731
    best = max(play(rate, 4000, length=length) for length in range(9))
    assert play(rate, 4000) > 1.02 * best


def test_what_it_knows_serves_the_next_request_from_the_first_round() -> None:
    policy = PayingPolicy()
    play(lambda _: 0.0, 500, policy=policy)
    policy.leave(0)
    plain = play(lambda _: 0.0, 64, length=0)
    assert play(lambda _: 0.0, 64, policy=policy, seed=1) > 0.95 * plain


def stating(values: Sequence[float], right: int) -> Callable[[int, int, float], Any]:
    """A guess with stated values that minds what a guess is worth."""

    def guess(_: int, length: int, worth: float) -> tuple[Proposal, int]:
        stated = [value for value in values[:length] if value >= worth]
        return Proposal([0] * len(stated), values=stated or None), right

    return guess


def test_a_first_draft_that_had_to_compile_is_not_held_against_it() -> None:
    """Eleven seconds once, with a drafter that says how sure it is and is right."""
    policy, num_drafts = entered(), 0
    values = [0.8**depth for depth in range(1, 9)]
    for _ in range(200):
        asking = 0.0 if num_drafts else 11_000.0
        lengths, _ = step(policy, [8], stating(values, right=8), asking=asking)
        num_drafts += lengths[0] > 0
    assert num_drafts > 150


def test_each_request_has_its_own_length() -> None:
    """The first one's guesses are right, the second one's wrong; neither goes past its room."""
    policy = entered(2)

    def guess(row: int, length: int, _: float) -> tuple[Proposal, int]:
        return Proposal([0] * length), 8 if row == 0 else 0

    cheap: Any = {"draft": 0.1, "passes": lambda size: 8.0 + 0.8 * size}
    for _ in range(80):
        lengths, _ = step(policy, [8, 8], guess, **cheap)
    assert lengths[0] >= 4
    assert lengths[1] <= 1
    assert step(policy, [1, 8], guess, **cheap)[0][0] <= 1


def test_no_room_is_no_draft() -> None:
    policy = entered()
    assert policy.choose([0], [request()], [0]).lengths == [0]


def test_auto_never_changes_the_text_and_says_what_it_did() -> None:
    """Through the engine: several requests in turn, whatever the clock says."""
    law = np.random.default_rng(0).dirichlet(np.full(9, 0.3), 9)
    target = fr.wrap(lambda tokens: law[tokens[-1]])
    prompts = [[1, 2], [3], [4, 5, 6], [7]]
    how: dict[str, Any] = {"max_new_tokens": 60, "sampling": fr.Sampling(seed=1), "batch_size": 2}
    plain = fr.generate(target, prompts, drafter=None, **how)
    drafter = fr.drafters.Model(target)
    ahead = fr.generate(target, prompts, drafter=drafter, draft_length="auto", **how)
    assert [each.tokens for each in ahead] == [each.tokens for each in plain]
    stats = ahead[-1].stats
    assert len(stats.drafted_by_round) == stats.rounds
    assert stats.speed_against_plain is not None
    assert stats.speed_against_plain > 0
    assert left_by(target, drafter, num_rows=2).ledger.rounds > 5
    assert left_by(target, drafter, num_rows=1).ledger.rounds == 0
    assert left_by(target, fr.drafters.NGram()).ledger.rounds == 0
    assert ahead[-1].stats.to_dict()["drafted_by_round"] == stats.drafted_by_round


@pytest.mark.parametrize("stated", [0.3, 0.8, 0.97])
def test_stated_values_are_believed_as_far_as_they_were_right(stated: float) -> None:
    """Eight in ten are kept of what is called 0.3, 0.8 or 0.97; where nine in ten must be, none is
    drafted but for trials."""
    for price, pays in ((4.0, True), (7.6, False)):
        policy, generator, drafted = entered(), random.Random(1), 0
        for number in range(900):
            right = int(generator.random() < 0.8)
            lengths, _ = step(
                policy, [1], stating([stated], right), draft=0.0, asking=0.01,
                passes=lambda size, price=price: 8.0 + price * (size - 1),
            )  # fmt: skip
            drafted += lengths[0] * (number >= 400)
        assert drafted > 450 if pays else drafted < 50


def test_a_drafter_that_says_how_sure_it_is_gets_room_and_a_bar() -> None:
    """Guesses that are called what they are: only those worth a slot are asked for."""
    policy, generator = entered(), random.Random(1)
    for _ in range(400):
        right = 0
        while right < 8 and generator.random() < 0.8:
            right += 1
        step(policy, [8], stating([0.8**depth for depth in range(1, 9)], right))
    choice = policy.choose([0], [request()], [8])
    assert choice.lengths == [8]
    assert 0.1 < worth(choice) <= 0.5


def test_a_drafter_that_is_sure_and_wrong_is_hardly_asked() -> None:
    policy, drafted = PayingPolicy(), 0
    for _ in range(10):
        policy.enter(0, request())  # a new request each time
        for _ in range(60):
            lengths, _ = step(policy, [8], stating([0.9] * 3, right=0))
            drafted += lengths[0] > 0
        policy.leave(0)
    assert drafted < 100


class Dear(Quiet):
    """Sure of itself, always wrong, and slow; counts how often it is asked."""

    name = "dear"

    def __init__(self, clock: StillClock, seconds: float) -> None:
        self.clock, self.seconds, self.asked = clock, seconds, 0

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> list[Guess]:
        self.asked += 1
        self.clock.pass_by(self.seconds)
        return [Guess([8] * turn.height, values=[0.9] * turn.height) for turn in turns]


@pytest.mark.parametrize("tree", [None, 12])
def test_one_that_is_dear_and_wrong_is_found_out_at_once(
    tree: int | None, still_clock: StillClock
) -> None:
    """Ten times a round's time: one draft to compile, some to be certain, and that was it."""
    law = [0.5, 0.5] + [0.0] * 7

    def slowly(tokens: Any) -> Any:
        still_clock.pass_by(0.001)
        return law

    drafter = Dear(still_clock, 0.01)
    answer = fr.generate(fr.wrap(slowly), [1], drafter=drafter, tree=tree, max_new_tokens=150)
    assert answer.stats.accepted == 0
    assert drafter.asked <= 6


def test_an_engine_that_always_reads_a_prompt_tries_no_drafts(still_clock: StillClock) -> None:
    """Each round has a new request: what drafts cost beside it cannot be told."""
    target = fr.wrap(lambda tokens: [0.5, 0.5] + [0.0] * 7)
    drafter = Dear(still_clock, 0.01)
    engine = Engine(
        target, drafter=drafter, draft_length="auto", rule=rules.get("match"), num_rows=4
    )
    sampling = fr.Sampling(seed=1)
    engine.submit(make_request(target, [1], AnswerOptions(sampling, max_new_tokens=99)))
    for _ in range(50):
        engine.submit(make_request(target, [2], AnswerOptions(sampling, max_new_tokens=2)))
        engine.step()
    assert drafter.asked == 0
    for _ in range(10):
        engine.step()
    assert drafter.asked > 0


def test_what_comes_after_the_end_was_not_accepted() -> None:
    """Every guess is right, and the text ends inside a draft."""
    target = fr.wrap(lambda tokens: np.eye(9)[(tokens[-1] + 1) % 9])
    answer = fr.generate(
        target, [0], drafter=fr.drafters.Model(target), draft_length=4, stop_tokens=[7]
    )
    assert answer.tokens == [1, 2, 3, 4, 5, 6, 7]
    stats = answer.stats
    assert (stats.rounds, stats.accepted, stats.emitted) == (2, 6, 7)
    assert stats.accepted == sum(fate is fr.Fate.ACCEPTED for fate in answer.fates)
    assert stats.accepted_by_position == stats.reached_by_position == [2, 2, 1, 1]


def test_the_pass_takes_what_pays_at_the_price_of_its_size() -> None:
    """Up to four tokens a pass takes 10 seconds, from five on 30: the fourth guess of three rows
    does not pay for that step, though on average a slot is cheap."""
    policy, generator = entered(), random.Random(2)
    for number in range(300):
        values = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3][: 1 + number % 7]
        right = sum(generator.random() < value for value in values[:1])
        lengths, _ = step(
            policy, [8], stating(values, right), draft=0.01,
            passes=lambda size: 10.0 if size <= 4 else 30.0,
        )  # fmt: skip
        if number > 100:
            assert lengths[0] <= 3
    assert step(policy, [8], stating([0.9], 1), passes=lambda _: 10.0)[0] == [1]  # costs nothing


def test_guesses_without_values_are_judged_by_their_slots() -> None:
    """Three rows of four are silent: one guess alone would cost the step from four tokens to five,
    which only guesses for all four rows would pay."""
    policy, generator, alone = entered(4), random.Random(3), 0
    for number in range(800):
        speaking = number % 4

        def guess(row: int, length: int, _: float, speaking: int = speaking) -> Any:
            right = int(generator.random() < 0.7)
            return Proposal([0] * (length if row == speaking else 0)), right

        lengths, _ = step(
            policy, [8] * 4, guess, draft=0.001, passes=lambda size: 44.0 if size < 5 else 65.0
        )
        alone += sum(lengths) > 0
    assert alone < 80


def test_sizes_timed_in_better_times_are_compared_with_others() -> None:
    """When everything becomes half as slow again, drafts that paid go on."""
    policy = entered()
    for number in range(400):
        slow = 1.0 if number < 200 else 1.5
        lengths, _ = step(
            policy, [3], stating([0.8, 0.7, 0.6], right=2), draft=0.2 * slow,
            passes=lambda size, slow=slow: slow * (8.0 + 2.0 * (size - 1)),
        )  # fmt: skip
        if 200 < number < 230:
            assert lengths[0] > 0 or policy.ledger.num_unasked > 0
    plain = policy.plain_seconds(1)
    assert plain is not None
    assert plain == pytest.approx(12.3, rel=0.1)


def _answer(policy: PayingPolicy, *, prompt: int, room: int, reading: float) -> int:
    """Rounds with drafts in an answer of `room` tokens to a prompt that takes the drafter time to
    read; each round with drafts makes 1.5 tokens in 1.25 times the time."""
    asked, read, written, number = 0, 0, 0, 0
    policy.enter(0, request())
    while written < room:
        unread = prompt + written - read
        lengths, _ = step(
            policy, [room - written - 1], stating([0.6], right=number % 2), draft=1.0,
            asking=reading * unread if unread > 32 else 0.0,
            passes=lambda size: 10.0 + 1.5 * (size - 1), requests=[request(prompt + written)],
        )  # fmt: skip
        if lengths[0]:
            read = prompt + written
        asked += lengths[0]
        written += 1 + min(lengths[0], number % 2)
        number += 1
    policy.leave(0)
    return asked


def test_a_prompt_is_read_where_the_answer_may_pay_for_it() -> None:
    policy = PayingPolicy()
    for _ in range(4):
        _answer(policy, prompt=4, room=200, reading=0.05)
    for _ in range(NUM_TIMED):  # to learn what it costs
        assert _answer(policy, prompt=2000, room=400, reading=0.05) > 100
    assert policy.ledger.drafters[0].reading.curve(1) == pytest.approx(0.05, rel=0.1)
    assert _answer(policy, prompt=2000, room=400, reading=0.05) > 100  # 10 rounds of 267
    assert _answer(policy, prompt=2000, room=40, reading=0.05) == 0
    assert _answer(policy, prompt=200, room=40, reading=0.05) > 10


def set_gain(policy: PayingPolicy, gain: float, num_rows: int = 1) -> None:
    """Let an ask be worth so many tokens more than it costs."""
    earned, plain = policy.ledger.drafters[0], policy.ledger.plain_seconds(num_rows)
    size = num_rows * earned.size.within(2.0, 1.0)
    earned.worth.above, earned.worth.below = 1e6 * (gain + earned.cost(size, 0, plain)), 1e6


def test_short_answers_do_not_keep_it_from_learning_better() -> None:
    """A drafter that has hardly paid so far would not save what reading the prompt costs.  It is
    asked all the same now and then, or nobody would notice that it pays now."""
    policy = PayingPolicy()
    for _ in range(4):
        _answer(policy, prompt=100, room=200, reading=0.05)
    set_gain(policy, 0.01)
    asked = [_answer(policy, prompt=100, room=40, reading=0.05) for _ in range(20)]
    assert sum(map(bool, asked)) > 10


def reading_beside_others(gain: float, num_rows: int = 8) -> PayingPolicy:
    """A policy that knows what a drafter gains with each ask, and that it reads 400 tokens in about
    the time of a plain round of eight; all rows have texts that it has not read."""
    policy = PayingPolicy()
    for prompt in (4, 4, 100, 100, 100):
        _answer(policy, prompt=prompt, room=200, reading=0.05)
    ledger = policy.ledger
    set_gain(policy, gain, num_rows)
    ledger.debt, ledger.last_run = 0.0, ledger.rounds
    for row in range(num_rows):
        policy.enter(row, request())
    return policy


def test_a_trial_reads_no_more_texts_than_the_budget_pays_for() -> None:
    policy = reading_beside_others(gain=-0.01)
    choice = policy.choose(range(8), [request(400)] * 8, [40] * 8)
    assert choice.is_trial
    assert 1 <= sum(length > 0 for length in choice.lengths) <= 3


def test_all_rows_wait_while_the_text_of_one_is_read() -> None:
    """Four tokens that asking saves in one answer do not pay for a round of eight rows."""
    for room, reads in (40, False), (200, True):
        policy = reading_beside_others(gain=0.2)
        policy.ledger.is_trying, policy.ledger.debt = False, 1.0
        choice = policy.choose(range(8), [request(400)] * 8, [room] * 8)
        assert any(choice.lengths) == reads


def test_what_an_ask_costs_is_known_by_the_rows_that_are_asked() -> None:
    """Asks about one text take next to nothing, and those about eight half a round: they are not
    mistaken for one another by an engine that has now one client and now eight."""
    policy, asked = PayingPolicy(), {1: 0, 8: 0}
    for turn in range(120):
        num_rows = 8 if turn % 2 else 1
        for row in range(num_rows):
            policy.enter(row, request())
        for _ in range(10):
            lengths, _ = step(
                policy, [8] * num_rows, stating([0.3], right=turn % 3 == 0),
                draft=0.0, asking=1.25 * num_rows if num_rows > 1 else 0.1,
                passes=lambda size: 10.0 + size,
            )  # fmt: skip
            asked[num_rows] += any(lengths) * (turn >= 20)
        for row in range(num_rows):
            policy.leave(row)
    assert asked[1] > 250, asked
    assert asked[8] < 50, asked


def test_rounds_that_read_tell_what_an_ask_costs() -> None:
    """Asks about one text have paid.  Those about eight, beside prompts that are being read all the
    time, do not, and are given up as soon as they were timed."""
    policy, guess, asked = entered(8), stating([0.6], right=1), 0
    for _ in range(200):
        step(policy, [8], guess, draft=0.1, passes=lambda size: 20.0)
    for _ in range(60):
        lengths, _ = step(
            policy, [8] * 8, guess, draft=40.0, passes=lambda size: 20.0, is_timed=False
        )
        asked += any(lengths)
    assert 0 < asked < 10


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("part", ["draft", "pass", "reading"])
def test_a_moment_that_others_had_the_processor_silences_nobody(part: str, number: int) -> None:
    """The draft or the pass of one early round takes forty times a plain round, or reading one of
    the first prompts does; later answers are drafted as if nothing had been."""
    policy, num_drafted, drafted = PayingPolicy(), 0, []
    for answer in range(12):
        policy.enter(0, request())
        written = read = own = 0
        while written < 48:
            unread = 100 + written - read
            is_hit = answer == number if part == "reading" else num_drafted == number
            pause = 400.0 * is_hit
            lengths, _ = step(
                policy, [48 - written - 1], stating([0.6], right=written % 2), draft=1.0,
                asking=pause * (part == "draft" or unread > 32) * (part != "pass"),
                passes=lambda size, late=pause * (part == "pass"): (
                    10.0 + 1.5 * (size - 1) + late * (size > 1)
                ),
                requests=[request(100 + written)],
            )  # fmt: skip
            if lengths[0]:
                read = 100 + written
            num_drafted, own = num_drafted + lengths[0], own + lengths[0]
            written += 1 + min(lengths[0], written % 2)
        drafted.append(own)
        policy.leave(0)
    assert min(drafted[-4:]) > 10, drafted


def test_one_that_is_dear_at_every_depth_is_found_out_as_soon() -> None:
    policy, coins, asked = entered(), random.Random(1), 0
    for _ in range(300):
        stated = [0.95**depth for depth in range(1, 1 + coins.randint(1, 8))]
        lengths, _ = step(policy, [8], stating(stated, right=0), asking=400.0)
        asked += lengths[0] > 0
    assert asked <= 6


def test_a_clock_that_stands_still_is_no_harm() -> None:
    policy = entered()
    for _ in range(50):
        policy.choose([0], [request()], [8])
        drafted = trimmed(policy.choose([0], [request()], [8]), [Proposal([1, 2])])
        policy.learn([0], [request()], drafted, [[0]], [0.0, 0.0, 0.0, 0.0])
    assert policy.plain_seconds(1) is None


def _lengths_asked(rule: str, seeds: list[int], **how: Any) -> list[list[int]]:
    """Draft lengths round by round of a drafter whose guesses are always kept."""
    target = fr.wrap(lambda tokens: np.full(9, 1 / 9))
    drafter = fr.drafters.Model(target)
    samplings = [fr.Sampling(seed=seed) for seed in seeds]
    answers = fr.generate(
        target, [[1 + index] for index in range(len(seeds))], drafter=drafter, rule=rule,
        sampling=samplings, max_new_tokens=60, **how,
    )  # fmt: skip
    known = left_by(
        target, drafter, num_rows=how.get("batch_size", 1), rule=None if rule == "match" else rule
    )
    assert known._learned_from == (set(seeds) if rule != "match" else set())
    return [each.stats.drafted_by_round for each in answers]


def test_a_seed_that_was_learned_from_is_not_steered_by_it() -> None:
    """Under a rule with coins, two requests with one seed meet the same coins: what the first made
    of them must not set the lengths of the second."""
    alike = _lengths_asked("ratio", [7, 7], batch_size=2)
    assert {length for own in alike for length in own[:-3]} == {3}
    different = _lengths_asked("ratio", [7, 8], batch_size=2)
    assert any(length != 3 for own in different for length in own[:-3])


def test_one_after_the_other_the_same_seed_begins_anew() -> None:
    target = fr.wrap(lambda tokens: np.full(9, 1 / 9))
    drafter = fr.drafters.Model(target)

    def known(seed: int, rule: str = "ratio", temperature: float = 1.0) -> Any:
        sampling = fr.Sampling(seed=seed, temperature=temperature)
        fr.generate(target, [1], drafter=drafter, rule=rule, sampling=sampling, max_new_tokens=40)
        return left_by(target, drafter, rule=None if rule == "match" else rule)

    first = known(1).ledger
    second = known(1).ledger
    assert second is not first
    assert known(2).ledger is second
    known(1, temperature=0.0)  # nothing is drawn: there are no coins
    assert known(3).ledger is second
    assert known(1).ledger is not second
    matched = known(1, "match").ledger
    assert known(1, "match").ledger is matched
    assert matched.rounds > 0


def test_seeds_are_forgotten_with_all_that_was_learned_also_under_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server is never idle, and must not remember every seed it has met."""
    monkeypatch.setattr(policy_module, "MOST_SEEDS", 10)
    policy, sampled = PayingPolicy(has_coins=True), SimpleNamespace(temperature=1.0)
    policy.enter(0, SimpleNamespace(seed=-1, sampling=sampled))  # type: ignore[arg-type]
    for seed in range(95):
        before = policy.ledger
        policy.enter(1, SimpleNamespace(seed=seed, sampling=sampled))  # type: ignore[arg-type]
        policy.leave(1)
        assert len(policy._learned_from) <= 10
        assert policy.ledger is before or policy.ledger.rounds == 0
        policy.ledger.rounds += 1
    policy.enter(1, SimpleNamespace(seed=-1, sampling=sampled))  # type: ignore[arg-type]
    assert policy._repeated == {0, 1}, "who is there is not forgotten"


@pytest.mark.parametrize(("slower", "pays"), [(1.0, True), (1.4, False)])
def test_drafts_are_compared_with_rounds_that_they_do_not_slow_down(
    slower: float, pays: bool
) -> None:
    """A drafter's weights may push the target's out of the cache: every pass takes longer then,
    those without a draft too, and drafts would seem to pay."""
    policy, coins = entered(), random.Random(1)
    rounds = since_asked = num_drafted = 0

    def guess(_: int, length: int, worth: float) -> tuple[Proposal, int]:
        nonlocal since_asked
        since_asked = 0 if length else since_asked
        return stating([0.75], coins.random() < 0.75)(0, length, worth)

    def passes(size: int) -> float:
        return (0.7 + 0.45 * (size - 1)) * (slower if since_asked < 5 else 1.0)

    for rounds in range(4000):
        since_asked += 1
        lengths, _ = step(policy, [8], guess, draft=0.0, asking=0.05, passes=passes)
        num_drafted += sum(lengths) * (rounds >= 2000)
    assert num_drafted > 1600 if pays else num_drafted < 400


class Shared:
    """A processor whose cache others use too: weights cool down with the seconds since a pass."""

    def __init__(self) -> None:
        self.cold, self.warm_seconds, self.cold_seconds = 1.0, 3.2, 3.2
        self.further_seconds = 1.3  # of each token but the first

    def run(self, size: int, before: float) -> float:
        """Seconds of a pass so long after the last one."""
        seconds = self.warm_seconds + self.further_seconds * (size - 1)
        seconds += self.cold_seconds * self.cold / size**0.5
        self.cold = 0.7 * self.cold + 0.3 * min(1.0, max(0.0, (before + seconds - 3.0) / 10))
        return seconds


def line(
    choice: Choice, values: Sequence[float], asking: float, level: float
) -> tuple[Drafted, float]:
    """What comes of a drafter with guesses of these values that goes on as it is told, and the
    seconds that it takes: so many, and for each level."""
    stated = [value for value in values[: choice.lengths[0]] if value >= worth(choice)]
    pairs = zip(stated, goes_on(choice), strict=False)
    last = next((at for at, (value, least) in enumerate(pairs) if value < least), 8)
    stated = stated[: last + 1]
    drafted = trimmed(choice, [Proposal([0] * len(stated), values=stated or None)])
    return drafted, asking + level * len(stated)


def num_silent(seed: int, num_answers: int = 20, size: int = 128) -> int:
    """Answers in which hardly anything is drafted, though it pays: a little, and not in their first
    dozen tokens, which are guessed worse than the drafter states."""
    policy, coins, machine, silent = PayingPolicy(), random.Random(seed), Shared(), 0
    machine.warm_seconds, machine.cold_seconds, machine.further_seconds = 2.7, 1.6, 0.95
    for _ in range(num_answers):
        policy.enter(0, request())
        quality, written, asked = coins.uniform(0.33, 0.72), 0, 0
        machine.cold = 1.0  # others had the processor
        while written < size:
            chances = [0.92 if coins.random() < 0.35 else quality for _ in range(8)]
            stated = [float(value) for value in np.cumprod(chances)]
            right = 0
            while right < 8 and coins.random() < chances[right] * (0.3 if written < 12 else 1.0):
                right += 1
            drafted, draft = Drafted([Proposal([])]), 0.0
            choice = policy.choose([0], [request()], [min(8, size - written - 1)])
            if choice.lengths[0]:
                drafted, draft = line(choice, stated, 0.3, 0.15)
                asked += 1
            count = len(drafted.proposals[0].tokens)
            seconds = machine.run(1 + count, draft) * coins.lognormvariate(0, 0.08)
            kept = min(right, count)
            policy.learn([0], [request()], drafted, [range(kept)], [draft, seconds, 0.0])
            written += kept + 1
        silent += asked < 20
        policy.leave(0)
    return silent


@pytest.mark.slow
def test_answers_that_begin_badly_do_not_silence_it() -> None:
    """100 of 960 are silent; 151 would be if 16 plain rounds could be lost."""
    assert sum(map(num_silent, range(48))) < 125


def shared_seconds(chance: float, num_rounds: int, *, length: int | None = None) -> float:
    """Seconds per token of one long answer, where each guess is kept with this chance.

    length None asks the policy, which a drafter tells how likely its guesses are.
    """
    policy, coins, machine = entered(), random.Random(3), Shared()
    tokens, total, asking = 0, 0.0, 0.5
    values = [chance**depth for depth in range(1, 9)]
    for _ in range(num_rounds):
        right = 0
        while right < 8 and coins.random() < chance:
            right += 1
        choice = policy.choose([0], [request()], [8])
        if length is not None:
            choice = Choice([length])
        drafted, draft = Drafted([Proposal([])]), 0.0
        if choice.lengths[0]:
            drafted, draft = line(choice, values, asking, 0.2)
        count = len(drafted.proposals[0].tokens)
        seconds = machine.run(1 + count, draft)
        kept = min(right, count)
        if length is None:
            policy.learn([0], [request()], drafted, [range(kept)], [draft, seconds, 0.0])
        tokens, total = tokens + kept + 1, total + draft + seconds
    return total / tokens


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7, 0.9])
def test_where_weights_cool_down_between_passes_it_is_never_far_from_the_best(
    chance: float,
) -> None:
    """The first rounds are cold, and those without drafts are quicker if there are many of them:
    before that is known, drafts seem to pay."""
    best = min(shared_seconds(chance, 300, length=length) for length in range(9))
    assert shared_seconds(chance, 300) < 1.12 * best


def test_a_price_learned_in_a_bad_moment_is_soon_forgotten() -> None:
    """The first three rounds without drafts took twice as long as others do: one more guess would
    seem to cost nothing, as larger passes are timed often and these are not."""
    policy, generator = entered(), random.Random(1)
    for number in range(400):
        right = int(generator.random() < 0.6)
        passes = lambda size, slow=number < 8: 8.0 * (1 + slow * (size == 1)) + 4 * (size - 1)  # noqa: E731
        step(policy, [1], stating([0.6], right), draft=0.0, asking=0.01, passes=passes)
    passes = policy.ledger.passes.curve
    assert passes(2) - passes(1) == pytest.approx(4.0, rel=0.25)


def test_a_drafter_that_has_become_good_is_found_out_in_the_same_answer() -> None:
    """It states what it is worth: little for long, then much."""
    policy, drafted = entered(), []
    for number in range(9000):
        values = [0.9, 0.8] if number >= 3000 else [0.3]
        guess = stating(values, right=len(values) if number >= 3000 else 0)
        drafted.append(sum(step(policy, [8], guess, draft=0.0, asking=0.6)[0]))
    assert sum(map(bool, drafted[1000:3000])) < 100
    assert sum(map(bool, drafted[8000:])) > 900


def test_a_drafter_that_takes_no_time_is_not_paused() -> None:
    """Nothing has to be compared with rounds that it did not disturb."""
    policy, num_unasked = entered(), 0
    for number in range(200):
        choice = policy.choose([0], [request()], [8])
        drafted, draft = Drafted([Proposal([])]), 0.0
        if choice.lengths[0]:
            values = [0.8] if number % 2 else []
            drafted, draft = (
                trimmed(choice, [Proposal([0] * len(values), values=values or None)]),
                1e-6,
            )
        num_unasked += choice.lengths[0] == 0
        count = len(drafted.proposals[0].tokens)
        policy.learn([0], [request()], drafted, [range(count)], [draft, 1 + 0.2 * count, 0.0])
    assert num_unasked < 24


@pytest.mark.parametrize("hit", range(6))
def test_trees_without_stated_chances_are_not_given_up(hit: int, still_clock: StillClock) -> None:
    """Two children on each of two levels, one of them right in two rounds of three: guesses of a
    depth share its acceptance, and four slots cost a fifth of a pass.  One of the first passes with
    guesses takes forty times as long as others."""
    num_scored = 0

    class Cheap(fr.models.FunctionModel):
        def score(self, state: Any, rows: Any, tokens: Any, num_logits: Any, *parents: Any) -> Any:
            nonlocal num_scored
            count = sum(num_logits) - 1
            num_scored += count > 0
            still_clock.pass_by(1.0 + 0.05 * count + 40.0 * (count > 0 and num_scored == hit))
            return super().score(state, rows, tokens, num_logits, *parents)

    def guess(turn: Any) -> Guess:
        still_clock.pass_by(0.02)
        step = 1 if turn.position % 3 else 4
        first, second = ((turn.tokens[-1] + step * depth) % 9 for depth in (1, 2))
        if turn.height < 2 or turn.budget < 4:
            return Guess()
        tokens = [first, (first + 5) % 9, second, (second + 5) % 9]
        return Guess(tokens, parents=[-1, -1, 0, 0])

    def answer(length: Any) -> fr.Stats:
        return fr.generate(
            target, [0], drafter=drafter, tree=6, draft_length=length, max_new_tokens=60
        ).stats

    target = Cheap(lambda tokens: np.eye(9)[(tokens[-1] + 1) % 9])
    drafter = Saying(guess)
    rounds = [answer("auto").rounds for _ in range(3)]
    assert rounds[0] < 48, "it is not silent for the rest of its first answer"
    assert rounds[-1] <= 1.2 * answer(4).rounds
