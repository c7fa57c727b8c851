"""Laws under options: bounds that hold, tight where everything is known, and fair bets on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from standins.options import law_of

from forerun.audit.bins import TAIL, Bins
from forerun.audit.conditions import CONDITIONS, Condition, changed
from forerun.audit.evidence import Evidence, Wealth, needed
from forerun.audit.features import NAMES, Spot
from forerun.audit.prompts import Prompt
from forerun.base.arrays import HostArray

FULL = Bins.of({" a": math.log(0.5), " b": math.log(0.3), " c": math.log(0.15)})
PROMPT = Prompt("Say a, b:", (" a", " b", " a"))
OPTIONS = [one.options for one in CONDITIONS if one.options] + [{"min_p": 0.4}, {"top_k": 3}]


def chances(law: Bins) -> dict[str, float]:
    return dict(zip(law.keys, law.chances.tolist(), strict=True))


def test_a_temperature_says_nothing_of_the_tail() -> None:
    law = changed(FULL, {"temperature": 0.5})
    squares = np.array([0.25, 0.09, 0.0225])
    assert law.most[:3] == pytest.approx(squares / squares.sum())
    assert not law.speaks_of(" zebra")
    assert law.speaks_of(" c")


def test_penalties_count_what_was_generated_or_the_prompt_too() -> None:
    options = {"presence_penalty": 1.0, "frequency_penalty": 0.5}
    weights = np.array([0.3, 0.15, 0.5 * math.exp(-2), 0.05])  # " b", " c", " a" said twice
    mine, both = Condition("", options).laws(FULL, [" a", " a"], Prompt("", PROMPT.pieces), 0.0)
    assert mine.keys == (" b", " c", " a", TAIL)
    assert mine.chances == pytest.approx(weights / weights.sum(), rel=1e-2)
    weights = np.array([0.5 * math.exp(-3), 0.3 * math.exp(-1.5), 0.15])  # 4 times, once, never
    assert both.index(" c") == 0
    odds = chances(both)[" a"] / chances(both)[" b"]
    assert odds == pytest.approx(weights[0] / weights[1])
    assert Condition("", options).laws(FULL, [], PROMPT, 0.0)[1].most.sum() > mine.most.sum()


def test_close_calls_at_the_edge_of_a_truncation_are_left_open() -> None:
    assert changed(FULL, {"top_p": 0.4}).most[1:] == pytest.approx([1e-6] * 3)
    half = changed(FULL, {"top_p": 0.5}, slack=0.01)  # " a" alone, or " b" as well
    assert half.most[:2] == pytest.approx([1.0, 0.3 / 0.8])
    two = Bins.of({" a": math.log(0.5), " b": math.log(0.4995)})
    assert changed(two, {"top_k": 1}, slack=0.01).most[:2] == pytest.approx([1.0, 1.0])
    assert changed(two, {"top_k": 1}).most[1] == pytest.approx(1e-6)
    assert changed(FULL, {"min_p": 0.5}).index(" c") > 1


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_no_honest_law_passes_its_bounds(options: Mapping[str, float], seed: int) -> None:
    """Laws of 30 tokens of which 8 are listed, as a plain server applies the options to them."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=30) * generator.uniform(0.5, 3)
    logits -= np.log(np.exp(logits).sum())
    words = [f" {number}" for number in range(30)]
    order = np.argsort(-logits)
    plain = Bins.of({words[row]: float(logits[row]) for row in order[:8]})
    said = [int(row) for row in generator.choice(order[:4], size=5)]
    prompt = [int(row) for row in generator.choice(order[:4], size=6)]
    asked = Prompt("", tuple(words[row] for row in prompt))
    condition = Condition("", options)
    laws = condition.laws(plain, [words[row] for row in said], asked, 0.0)
    for law, history in zip(laws, (said, prompt + said), strict=False):
        true = law_of(logits, history, options)
        known = np.array([true[words.index(key)] for key in law.keys[:-1]])
        if not law.has_tail:
            known /= known.sum()
        elif 1 - known.sum() > 1e-9:
            assert 1 - known.sum() <= law.most[-1] * (1 + 1e-9)
        assert (known <= law.most[:-1] * (1 + 1e-9)).all()
        assert law.chances.sum() == pytest.approx(1)


def wealth() -> tuple[Wealth, list[Condition]]:
    asked = [one for one in CONDITIONS if one.name in ("temperature 0.5", "penalties")]
    parts = {
        one.name: [Evidence(len(NAMES), 4, 2) for _ in range(one.num_readings)] for one in asked
    }
    return Wealth(Evidence(len(NAMES), 4, 2), parts), asked


def bet(on: Wealth, condition: Condition, said: list[str], seen: str) -> None:
    text = [*PROMPT.pieces, *said]
    spot = Spot(text, len(text), PROMPT.text, FULL)
    for evidence, law in zip(
        on.parts[condition.name], condition.laws(FULL, said, Prompt("", PROMPT.pieces), 0.0),
        strict=True,
    ):  # fmt: skip
        if law.speaks_of(seen):
            evidence.add(spot.view(law), law.index(seen))
            if condition.num_readings == 1:
                on.pool.add(spot.view(law), law.index(seen))


@pytest.mark.parametrize("counts_prompts", [False, True])
def test_the_mean_of_the_e_value_is_at_most_1_under_either_reading(counts_prompts: bool) -> None:
    """By enumeration of all texts of a token at a temperature and two tokens under penalties."""
    words = [" a", " b", " c", " d"]
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    prompt = [words.index(piece) for piece in PROMPT.pieces] if counts_prompts else []

    def law(condition: Condition, said: tuple[int, ...]) -> HostArray:
        return law_of(logits, [*prompt, *said], condition.options)

    total = 0.0
    for choice in product(range(4), repeat=3):
        on, asked = wealth()
        chance = 1.0
        for condition, said in zip(asked, (choice[:1], choice[1:]), strict=True):
            for place, token in enumerate(said):
                chance *= law(condition, said[:place])[token]
                bet(on, condition, [words[row] for row in said[:place]], words[token])
        total += chance * math.exp(on.log_e_value)
    assert 0.1 < total <= 1 + 1e-12


def test_suspects_are_looked_at_first_and_all_in_the_end() -> None:
    on, asked = wealth()
    cold, other = asked

    def texts(count: int, cost: int = 8) -> Counter[str]:
        chosen: Counter[str] = Counter()
        for _ in range(count):
            condition = on.next(asked)
            chosen[condition.name] += 1
            on.spent[condition.name, PROMPT.text] += cost
        return chosen

    assert texts(6) == {cold.name: 3, other.name: 3}
    while on.log_e_value < needed(0.01):
        bet(on, cold, [], " c")
    assert on.of(cold.name) > on.of(other.name) == 0
    assert texts(10) == {cold.name: 10}
    assert texts(200)[other.name] > 5


def test_a_condition_that_costs_more_has_fewer_texts() -> None:
    on, asked = wealth()
    for _ in range(300):
        condition = on.next(asked)
        on.spent[condition.name, PROMPT.text] += 8 if condition is asked[0] else 24
    spent = [on.spent_under(one.name) for one in asked]
    assert spent[0] == pytest.approx(spent[1], abs=32)


def test_the_prompt_where_bets_win_is_asked_for_again() -> None:
    on, (cold, _) = wealth()
    other = Prompt("Go on:", PROMPT.pieces)
    for _ in range(2 * 24):
        on.spent[cold.name, on.next_prompt(cold, [PROMPT, other]).text] += 1
    assert on.spent[cold.name, PROMPT.text] == on.spent[cold.name, other.text] == 24
    for _ in range(20):
        bet(on, cold, [], " c")  # of PROMPT
    assert {on.next_prompt(cold, [PROMPT, other]).text for _ in range(5)} == {PROMPT.text}
    on.spent[cold.name, PROMPT.text] += 5000
    assert on.next_prompt(cold, [PROMPT, other]) is other
