"""The controller in a simulated world where the best fixed length is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drafting import Quiet

import forerun as fr
from clocks import StillClock
from forerun.drafters import Guess
from forerun.drafters.base import Prices
from forerun.engine.controller import Controller, Ended, leave_controller, take_controller
from forerun.engine.estimates import Acceptance, Calibration, Experience

PASS = {1: 8.0, 2: 10.0, 3: 10.5, 4: 12.0, 5: 15.0, 6: 15.5, 7: 17.0, 8: 18.0, 9: 20.0}


def left_by(target: Any, drafter: Any, **setting: Any) -> Controller:
    """What the last engine of that pair has left, which stays where it is."""
    known = take_controller(target, drafter, **setting)
    leave_controller(known, target, drafter, **setting)
    return known


def play(
    rate: Callable[[int], float],
    num_rounds: int,
    *,
    step: float = 0.6,
    length: int | None = None,
    controller: Controller | None = None,
    seed: int = 0,
    noise: float = 0.2,
) -> float:
    """Tokens per second of rounds with one request; length None asks the controller."""
    generator = random.Random(seed)
    controller = controller or Controller(most=8)
    own = Experience()
    tokens, seconds = 0, 0.0
    for number in range(num_rounds):
        count = controller.choose([own], [8]).lengths[0] if length is None else length
        kept = 0
        while kept < count and generator.random() < rate(number):
            kept += 1
        score, draft = PASS[1 + count], (step * count + 1.0 if count else 0.0)
        tokens += kept + 1
        seconds += score + draft
        slow = generator.expovariate(1) * noise * score
        controller.learn(
            [own], [Ended(count, kept)], draft_seconds=draft, score_seconds=score + slow,
            other_seconds=0.3, reads_prompt=False,
        )  # fmt: skip
    return tokens / seconds


@pytest.mark.parametrize("acceptance", [0.02, 0.3, 0.5, 0.7, 0.9])
def test_it_comes_close_to_the_best_fixed_length(acceptance: float) -> None:
    rate: Callable[[int], float] = lambda _: acceptance  # noqa: E731
    best = max(play(rate, 3000, length=length) for length in range(9))
    assert play(rate, 3000) > 0.95 * best


def test_where_drafts_fail_it_all_but_stops_drafting() -> None:
    plain = play(lambda _: 0.0, 2000, length=0)
    assert play(lambda _: 0.0, 2000) > 0.98 * plain


def test_it_follows_a_text_that_changes() -> None:
    """Copying, then prose, then copying: better than any fixed length can be."""
    rate: Callable[[int], float] = lambda n: 0.95 if (n // 500) % 2 == 0 else 0.1  # noqa: E731
    best = max(play(rate, 4000, length=length) for length in range(9))
    assert play(rate, 4000) > 1.02 * best


def test_what_it_knows_serves_the_next_request_from_the_first_round() -> None:
    controller = Controller(most=8)
    play(lambda _: 0.0, 500, controller=controller)
    plain = play(lambda _: 0.0, 64, length=0)
    assert play(lambda _: 0.0, 64, controller=controller, seed=1) > 0.95 * plain


def test_a_first_draft_that_had_to_compile_is_not_held_against_it() -> None:
    """Eleven seconds once, with a drafter that says how sure it is and is right."""
    controller, asked = Controller(most=8), 0
    for number in range(200):
        own = Experience() if number % 50 == 0 else own  # noqa: F821
        lengths, worth, _ = controller.choose([own], [8])
        values = [0.8**depth for depth in range(1, 1 + lengths[0]) if 0.8**depth >= worth]
        asked += bool(values)
        controller.learn(
            [own], [Ended(len(values), len(values), values or None, range(len(values)))],
            draft_seconds=11_000.0 if asked == 1 else 0.6 * len(values),
            score_seconds=PASS[1 + len(values)], other_seconds=0.2, reads_prompt=False,
        )  # fmt: skip
    assert asked > 150


def test_a_short_draft_says_nothing_about_the_slots_it_left_out() -> None:
    acceptance = Acceptance()
    acceptance.learn(num_drafted=2, num_accepted=2)
    acceptance.learn(num_drafted=5, num_accepted=1)
    assert len(acceptance.reached) == 2
    assert acceptance.rate(1, belief=0.5, trust=0.0) == pytest.approx(0.5, abs=0.01)
    assert acceptance.rate(4, belief=0.7, trust=1.0) == 0.7


def test_each_request_has_its_own_length() -> None:
    controller = Controller(most=8)
    good, bad = Experience(), Experience()
    for size in range(2, 19):
        controller.costs.score.learn(size, 8.0 + 0.8 * size)
    controller.costs.draft.learn(4, 0.4)
    controller.last_plain = controller.last_asked = controller.rounds = 1
    controller.num_plain = 3
    for _ in range(60):
        good.acceptance.learn(4, 4)
        bad.acceptance.learn(4, 0)
        controller.acceptance.learn(4, 4)
        controller.acceptance.learn(4, 0)
    lengths = controller.choose([good, bad], [8, 8]).lengths
    assert lengths[0] >= 4
    assert lengths[1] <= 1
    assert controller.choose([good, bad], [1, 8]).lengths[0] <= 1


def test_no_room_is_no_draft() -> None:
    assert Controller(most=8).choose([Experience()], [0]).lengths == [0]


def test_auto_never_changes_the_text_and_says_what_it_did() -> None:
    """Through the engine: several requests in turn, whatever the clock says."""
    law = np.random.default_rng(0).dirichlet(np.full(9, 0.3), 9)
    target = fr.wrap(lambda tokens: law[tokens[-1]])
    prompts = [[1, 2], [3], [4, 5, 6], [7]]
    how: dict[str, Any] = {"max_new_tokens": 60, "sampling": fr.Sampling(seed=1), "batch_size": 2}
    plain = fr.generate(target, prompts, **how)
    drafter = fr.drafters.Model(target)
    ahead = fr.generate(target, prompts, drafter=drafter, draft_length="auto", **how)
    assert [each.tokens for each in ahead] == [each.tokens for each in plain]
    stats = ahead[-1].stats
    assert len(stats.drafted_by_round) == stats.rounds
    assert stats.speed_against_plain is not None
    assert stats.speed_against_plain > 0
    assert left_by(target, drafter, num_rows=2).rounds > 5
    assert left_by(target, drafter, num_rows=1).rounds == 0
    assert left_by(target, fr.drafters.NGram()).rounds == 0
    assert ahead[-1].stats.to_dict()["drafted_by_round"] == stats.drafted_by_round


def test_a_modest_drafter_is_believed_as_far_as_it_is_right() -> None:
    generator = random.Random(0)
    calibration = Calibration()
    for _ in range(3000):
        value = generator.random()
        calibration.learn([value], [0] if generator.random() < value**0.5 else [])
    assert calibration.least(0.3) in (0.06, 0.1)  # 0.09 is kept three times in ten
    assert calibration.least(0.6) in (0.3, 0.4)  # 0.36 is kept six times in ten
    assert calibration.least(2.0) == 0.8


def test_a_drafter_that_says_how_sure_it_is_gets_room_and_a_bar() -> None:
    """Guesses that are called what they are: only those worth a slot are asked for."""
    controller, own = Controller(most=8), Experience()
    generator = random.Random(1)
    for _ in range(400):
        lengths, worth, _ = controller.choose([own], [8])
        values = [0.9 * 0.8**depth for depth in range(lengths[0])]
        values = [value for value in values if value >= worth]
        kept = 0
        while kept < len(values) and generator.random() < 0.8:
            kept += 1
        controller.learn(
            [own], [Ended(len(values), kept, values, range(kept))],
            draft_seconds=0.6 * len(values), score_seconds=PASS[1 + len(values)],
            other_seconds=0.2, reads_prompt=False,
        )  # fmt: skip
    assert lengths == [8]
    assert 0.1 < worth <= 0.5


def test_a_drafter_that_is_sure_and_wrong_is_hardly_asked() -> None:
    controller, asked = Controller(most=8), 0
    for _ in range(10):
        own = Experience()  # a new request each time
        for _ in range(60):
            lengths, worth, _ = controller.choose([own], [8])
            values = [0.9] * 3 if lengths[0] and worth < 0.9 else []
            asked += bool(lengths[0])
            controller.learn(
                [own], [Ended(len(values), 0, values or None)], draft_seconds=0.6 * len(values),
                score_seconds=PASS[1 + len(values)], other_seconds=0.2, reads_prompt=False,
            )  # fmt: skip
    assert asked < 60


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
    """Ten times a round's time: one draft to compile, one to time, and that was it."""
    law = [0.5, 0.5] + [0.0] * 7

    def slowly(tokens: Any) -> Any:
        still_clock.pass_by(0.001)
        return law

    drafter = Dear(still_clock, 0.01)
    answer = fr.generate(fr.wrap(slowly), [1], drafter=drafter, tree=tree, max_new_tokens=150)
    assert answer.stats.accepted == 0
    assert drafter.asked <= 4


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
    """Up to four tokens a pass takes 10, from five on 20: a fourth guess must pay for the step."""
    controller = Controller(most=8, calibration=Calibration())
    for size in range(1, 9):
        for _ in range(3):
            controller.costs.score.learn(size, 10.0 if size <= 4 else 20.0)
    controller.num_plain = 3
    for value in (0.9, 0.7, 0.5, 0.3):
        for number in range(400):
            kept = number % 100 < 100 * value
            controller.calibration.learn([value], [0] if kept else [])  # type: ignore[union-attr]
    prices = Prices(token=8.0, slot=2.0)
    assert controller.bar([[0.9, 0.7, 0.5, 0.3]], 1, prices) == 0.5
    assert controller.bar([[0.3]], 1, prices) == 0.3  # it costs nothing
    assert controller.bar([[0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]], 1, prices) == 0.9
    assert controller.bar([[0.3], [0.3]], 4, prices) == float("inf")
    controller.rounds = 100  # nothing was drafted for so long: one guess, to see
    assert controller.bar([[0.3, 0.2], [0.1]], 4, prices) == 0.3
    assert controller.bar([[], []], 2, prices) == 0.0


def _answer(controller: Controller, *, prompt: int, room: int, reading: float) -> int:
    """Rounds with drafts in an answer of `room` tokens to a prompt that takes the drafter time to
    read; each round with drafts makes 1.5 tokens in 1.25 times the time."""
    own, asked, read, written = Experience(), 0, 0, 0
    for number in range(room):
        left = room - written - 1
        if left < 0:
            break
        unread = prompt + written - read
        lengths, _, _ = controller.choose([own], [left], [unread])
        count = min(1, lengths[0])
        own.num_shown = unread if count else 0
        if count:
            read = prompt + written
            asked += 1
        kept = count * (number % 2)
        controller.learn(
            [own], [Ended(count, kept, [0.6] if count else None, range(kept))],
            draft_seconds=count * (1.0 + reading * (own.num_shown > 32) * unread),
            score_seconds=10.0 + 1.5 * count, other_seconds=0.1, reads_prompt=False,
        )  # fmt: skip
        written += kept + 1
    return asked


def test_a_prompt_is_read_where_the_answer_may_pay_for_it() -> None:
    controller = Controller(most=8)
    for _ in range(4):
        _answer(controller, prompt=4, room=200, reading=0.05)
    assert _answer(controller, prompt=2000, room=400, reading=0.05) > 100  # to learn what it costs
    assert controller.costs.reading.middle == pytest.approx(0.05, rel=0.1)
    assert _answer(controller, prompt=2000, room=400, reading=0.05) > 100  # 10 rounds of 267
    assert _answer(controller, prompt=2000, room=40, reading=0.05) == 0
    assert _answer(controller, prompt=200, room=40, reading=0.05) > 10


def _lengths_asked(rule: str, seeds: list[int], **how: Any) -> list[list[int]]:
    """Draft lengths round by round of a drafter whose guesses are always kept."""
    target = fr.wrap(lambda tokens: np.full(9, 1 / 9))
    drafter = fr.drafters.Model(target)
    samplings = [fr.Sampling(seed=seed) for seed in seeds]
    answers = fr.generate(
        target, [[1 + index] for index in range(len(seeds))], drafter=drafter, rule=rule,
        sampling=samplings, max_new_tokens=60, **how,
    )  # fmt: skip
    known = left_by(target, drafter, num_rows=how.get("batch_size", 1), rule=rule)
    assert known.seeds == (set(seeds) if rule != "match" else set())
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

    def rounds(seed: int, rule: str = "ratio", temperature: float = 1.0) -> int:
        sampling = fr.Sampling(seed=seed, temperature=temperature)
        fr.generate(target, [1], drafter=drafter, rule=rule, sampling=sampling, max_new_tokens=40)
        return left_by(target, drafter, rule=None if rule == "match" else rule).rounds

    first = rounds(1)
    assert rounds(1) == first > 0  # it was another controller that learned
    second = rounds(2)
    assert second > first
    assert rounds(1, temperature=0.0) > second  # nothing is drawn: there are no coins
    alone = rounds(1, "match")
    assert rounds(1, "match") > alone > 0
