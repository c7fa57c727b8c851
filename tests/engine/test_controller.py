"""The controller in a simulated world where the best fixed length is known."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drafting import Quiet

import forerun as fr
from forerun.drafters import Guess
from forerun.engine.controller import Controller, Ended, controller_of
from forerun.engine.estimates import Acceptance, Calibration, Clock, Experience

PASS = {1: 8.0, 2: 10.0, 3: 10.5, 4: 12.0, 5: 15.0, 6: 15.5, 7: 17.0, 8: 18.0, 9: 20.0}


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
        controller.score.learn(size, 8.0 + 0.8 * size)
    controller.draft.learn(4, 0.4)
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


def test_the_clock_reads_between_and_beyond_what_it_timed() -> None:
    clock = Clock()
    clock.learn(2, 10.0)
    assert clock(1) == 10.0
    assert clock(4) == 20.0  # nothing is known: at most in proportion
    clock.learn(6, 14.0)
    assert clock(4) == 12.0
    assert clock(8) == 16.0
    for seconds in (14.0, 90.0, 14.0):
        clock.learn(6, seconds)
    assert clock(6) == 14.0  # one slow pass is not believed


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
    assert controller_of(target, drafter, num_rows=2).rounds > 5
    assert controller_of(target, drafter, num_rows=1).rounds == 0
    assert controller_of(target, fr.drafters.NGram()).rounds == 0
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

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked = seconds, 0

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> list[Guess]:
        self.asked += 1
        time.sleep(self.seconds)
        return [Guess([8] * turn.height, values=[0.9] * turn.height) for turn in turns]


@pytest.mark.parametrize("tree", [None, 12])
def test_one_that_is_dear_and_wrong_is_found_out_at_once(tree: int | None) -> None:
    """Ten times a round's time: one draft to compile, one to time, and that was it."""
    law = [0.5, 0.5] + [0.0] * 7

    def slowly(tokens: Any) -> Any:
        time.sleep(0.001)
        return law

    drafter = Dear(0.01)
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


@pytest.mark.parametrize(("rule", "is_shared"), [("match", True), ("ratio", False)])
def test_what_was_learned_is_kept_from_rules_that_it_could_bias(rule: str, is_shared: bool) -> None:
    """Under a rule with coins, a request with the seed of an earlier one meets its coins again."""
    target = fr.wrap(lambda tokens: np.full(9, 1 / 9))
    drafter = fr.drafters.Model(target)
    fr.generate(
        target, [1], drafter=drafter, rule=rule, sampling=fr.Sampling(seed=1), max_new_tokens=40
    )
    assert (controller_of(target, drafter).rounds > 0) is is_shared
