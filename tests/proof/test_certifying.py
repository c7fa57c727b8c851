"""`certify` on functions of all kinds: right, wrong, unlistable, and broken.

The sampled tests have fixed seeds; a correct function would be rejected, over the choice of the
seed, with probability 1e-6 per case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun import rules
from forerun.proof import Case, edge_cases, standard_cases, tree_cases
from forerun.proof.broken import bare_target, coins_by_position, walk
from forerun.proof.cases import contextual, mixed
from forerun.proof.rounds import draw_plainly


def residual(target: Any, draft: Any) -> Any:
    owed = np.maximum(target - draft, 0)
    owed = owed if owed.sum() > 1e-12 else target
    return owed / owed.sum()


def own(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """The ratio rule as somebody might write it: all coins at once, in logarithms."""
    slots = np.arange(len(tokens))
    with np.errstate(divide="ignore"):
        bars = np.log(target[slots, tokens]) - np.log(draft[slots, tokens])
    kept = 0
    for coin, bar in zip(rng.random(len(tokens)), bars, strict=True):
        if not np.log(coin) < bar:
            break
        kept += 1
    law = target[-1] if kept == len(tokens) else residual(target[kept], draft[kept])
    return [*tokens[:kept], rng.choice(len(law), p=law)]


GENERATOR = np.random.default_rng(3)


def hidden(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """The same with a generator of its own that nobody can follow."""
    return own(tokens, draft, target, GENERATOR)


def by_inverse(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Draws by searching a cumulative sum, which looks at the number itself."""
    kept = 0
    for p, q, token in zip(target, draft, tokens, strict=False):
        if rng.random() * q[token] >= p[token]:
            break
        kept += 1
    law = target[-1] if kept == len(tokens) else residual(target[kept], draft[kept])
    token = np.searchsorted(np.cumsum(law), float(rng.uniform()), side="right")
    return [*tokens[:kept], min(int(token), len(law) - 1)]


def with_verify(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Our own front door inside a user's function."""
    guess = fr.Draft.sampled(tokens, draft) if len(tokens) else fr.Draft.point([[]])
    seed = int(rng.integers(2**63))
    return fr.verify(guess, target, rule="block", seed=seed).tokens()[0]


def seeding(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """A generator of its own, seeded from the one it was given."""
    return own(tokens, draft, target, np.random.default_rng(rng.integers(2**31)))


@pytest.fixture
def few() -> list[Case]:
    target, draft = contextual(3, 1), mixed(contextual(3, 1), contextual(3, 2), 0.5)
    return [Case("small", 3, target, draft, 2, 3)]


# --- exactly -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["ratio", rules.get("lenient", lenience=0.9)])
def test_rules_by_name_and_as_objects(rule: Any) -> None:
    """Every case twice: with the draft sampled, and with the drafter's argmax."""
    found = fr.certify(rule)
    assert found.method == "exact"
    assert found.lossless == rules.get(rule).lossless
    assert (found.bias <= 1e-12) == found.lossless
    assert len(found.findings) == 2 * len([*standard_cases(), *edge_cases()])


def test_a_function_of_ones_own_passes_exactly() -> None:
    found = fr.certify(own)
    assert found.subject == "own"
    assert found.method == "exact"
    assert found.lossless
    assert found.bias <= 1e-12
    assert found.detectable == 1e-12


def test_a_function_may_overwrite_its_arguments(few: list[Case]) -> None:
    """Every path gets arrays of its own, although a draft is drawn once for all of them."""

    def overwriting(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        emitted = own(tokens, draft, target, rng)
        for given in (tokens, draft, target):
            given[:] = 0
        return emitted

    found = fr.certify(overwriting, cases=few)
    assert (found.method, found.lossless) == ("exact", True)


def test_a_drawer_may_leave_a_number_for_the_function(few: list[Case]) -> None:
    """The first coin is drawn with the draft, and is another unknown number on every path."""

    class Coins:
        def __init__(self, rng: Any) -> None:
            self.rng, self.first = rng, rng.random()

        def random(self, count: int) -> list[Any]:
            return [self.first, *(self.rng.random() for _ in range(count - 1))][:count]

        def choice(self, *args: Any, **how: Any) -> Any:
            return self.rng.choice(*args, **how)

    left: list[Coins] = []

    def draw(model: Any, draft_length: Any, rng: Any) -> Any:
        left[:] = [Coins(rng)]
        return draw_plainly(model, draft_length, rng)

    found = fr.certify(lambda *given: own(*given[:3], left[0]), draw=draw, cases=few)
    assert (found.method, found.lossless) == ("exact", True)


def test_the_standard_cases_have_what_goes_wrong() -> None:
    """Distinct rows, zeros, equal laws, disjoint ones, certainties, several rounds, changing K."""
    cases = {case.name: case for case in standard_cases()}
    assert len(cases) >= 12
    rows = cases["context-dependent rows"].target
    assert not np.allclose(rows(()), rows((0,)))
    assert not np.allclose(rows((0,)), rows((1,)))
    assert cases["no draft"].draft_length == 0
    assert any((cases["impossible tokens"].target(p) == 0).any() for p in [(), (0,), (1,), (2,)])
    same = cases["drafter equals target"]
    assert np.array_equal(same.target((1,)), same.draft((1,)))
    apart = cases["nothing in common"]
    assert apart.target(()) @ apart.draft(()) == 0
    assert cases["certain target"].target(()).max() == 1
    assert cases["certain drafter"].draft(()).max() == 1
    several = cases["several rounds"]
    assert several.draft_length == 1
    assert several.length == 4
    lengths = cases["K changes"].draft_length
    assert callable(lengths)
    assert {lengths((0,) * n) for n in range(4)} == {0, 1, 2}
    for case in cases.values():
        assert case.target(()).sum() == pytest.approx(1)


def test_another_seed_gives_other_cases() -> None:
    first, second = next(standard_cases(0)), next(standard_cases(1))
    assert not np.allclose(first.target(()), second.target(()))
    assert np.array_equal(first.target((1,)), next(standard_cases(0)).target((1,)))


# --- by sampling -------------------------------------------------------------------------------


def test_randomness_from_elsewhere_is_noticed(few: list[Case]) -> None:
    with pytest.raises(fr.InputError, match=r"from somewhere else than its rng.*of its own"):
        fr.certify(hidden, cases=few, samples=4000)
    found = fr.certify(hidden, cases=few, samples=4000, method="sampled")
    assert found.method == "sampled"
    assert found.lossless


@pytest.mark.parametrize("function", [by_inverse, with_verify, seeding])
def test_code_that_cannot_be_listed_is_sampled(few: list[Case], function: Any) -> None:
    found = fr.certify(function, cases=few, samples=1000)
    assert found.method == "sampled"
    assert found.lossless
    (finding,) = found.findings
    assert finding.samples == 1000
    assert 0 < finding.limit < finding.detectable < 0.3
    assert finding.power == 0.999
    assert found.verdict == "no bias of 0.19 or more found"
    assert str(found).startswith(f"{function.__name__}: no bias of 0.19 or more found (sampled")


@pytest.mark.parametrize(("subject", "method"), [(own, "exact"), (own, "sampled"), ("ratio", "")])
def test_progress_is_told_and_nothing_is_printed(
    few: list[Case], subject: Any, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, int]] = []
    how: dict[str, Any] = {"cases": [*few, *few], "samples": 1000, "method": method or "auto"}
    found = fr.certify(subject, **how, progress=lambda *news: told.append(news))
    assert found == fr.certify(subject, **how)
    assert capfd.readouterr() == ("", "")
    steps = [0, 500, 1000, 1500] if method == "sampled" else [0, 1]
    assert told == [("small", done, 2000 if method == "sampled" else 2) for done in steps]


def test_addresses_are_for_rules(few: list[Case]) -> None:
    with pytest.raises(fr.InputError, match=r"A function is handed its numbers.*Pass a rule"):
        fr.certify(own, cases=few, addressing=coins_by_position)


@pytest.mark.slow
def test_sampling_catches_a_bias_it_says_it_would(few: list[Case]) -> None:
    """The bias is known from the exact test, and is above the stated level."""
    exact = fr.certify(bare_target, cases=few, method="exact")
    found = fr.certify(bare_target, cases=few, method="sampled", samples=7000)
    assert exact.bias > found.detectable
    assert not found.lossless
    assert found.bias == pytest.approx(exact.bias, abs=found.findings[0].limit)


def test_sampling_lets_a_correct_function_pass(few: list[Case]) -> None:
    found = fr.certify(walk, cases=few, method="sampled", samples=2000)
    assert found.lossless
    assert found == fr.certify(walk, cases=few, method="sampled", samples=2000)  # and repeats


def test_more_samples_see_smaller_biases(few: list[Case]) -> None:
    coarse = fr.certify(walk, cases=few, method="sampled", samples=1000)
    fine = fr.certify(walk, cases=few, method="sampled", samples=4000)
    assert fine.detectable == pytest.approx(coarse.detectable / 2)


def test_sampling_uses_a_few_of_the_standard_cases() -> None:
    found = fr.certify(by_inverse, samples=1000)
    names = [finding.case for finding in found.findings]
    cases = [*standard_cases(), *edge_cases()]
    assert names == [case.name for case in cases if case.sampled]
    assert {"no draft", "nothing in common", "certain target", "eight draft tokens"} < {*names}
    assert found.lossless
    assert found.scope == "drafts of 0 to 3 and 8 tokens, vocabularies of 2 to 4 and 33"


def test_the_scope_names_every_length_and_size() -> None:
    cases = [*standard_cases(), *edge_cases()]
    assert fr.certify(own, cases=cases[1:2]).scope == "drafts of 1 tokens, a vocabulary of 4"
    chosen = [case for case in cases if case.name in ("no draft", "several rounds", "ties")]
    assert fr.certify(own, cases=chosen).scope == "drafts of 0 to 2 tokens, vocabularies of 3 to 4"


LONG = [(8, slot) for slot in range(9)] + [(k, k - back) for k in (5, 6, 7) for back in range(3)]


@pytest.mark.parametrize(("count", "slot"), [(1, 0), (1, 1), (2, 1), (2, 2)])
def test_an_error_at_one_slot_of_large_vocabularies_is_found(count: int, slot: int) -> None:
    """Only the eight likeliest tokens are left; the slot after the draft is the bonus token."""

    def wrong(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        rows = np.array(target)
        if len(tokens) == count and rows.shape[1] > 8:
            rows[slot, np.argsort(rows[slot])[:-8]] = 0
            rows[slot] /= rows[slot].sum()
        return own(tokens, draft, rows, rng)

    cases = [case for case in edge_cases() if case.name.startswith("large vocabulary")]
    assert not fr.certify(wrong, cases=cases).lossless


@pytest.mark.parametrize(("count", "slot"), LONG)
def test_an_error_at_one_slot_of_long_drafts_is_found(count: int, slot: int) -> None:
    """The slot after the draft is the bonus token."""

    def wrong(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        rows = np.array(target)
        if len(tokens) == count:
            likeliest = np.eye(rows.shape[1])[rows[slot].argmax()]
            rows[slot] = 0.9 * rows[slot] + 0.1 * likeliest
        return own(tokens, draft, rows, rng)

    number = {5: "five", 6: "six", 7: "seven", 8: "eight"}[count]
    cases = [case for case in edge_cases() if case.name.startswith(f"{number} draft tokens")]
    assert not fr.certify(wrong, cases=cases).lossless


# --- what is no emission at all ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["exact", "sampled"])
@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (lambda tokens, size: [size], "vocabulary of 3"),
        (lambda tokens, size: [-1], "vocabulary of 3"),
        (lambda tokens, size: [*tokens, 0, 0], "emitted 4 tokens for a draft of 2"),
        (lambda tokens, size: [], "emitted 0 tokens"),
    ],
)
def test_an_impossible_answer_is_reported(
    few: list[Case], method: str, answer: Any, note: str
) -> None:
    def broken(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        return answer(tokens, target.shape[1])

    found = fr.certify(broken, cases=few, method=method, samples=1000)
    assert not found.lossless
    assert note in found.worst.note
    assert note in str(found)
    assert found.bias == 1.0


def test_too_few_tokens_are_a_bias(few: list[Case]) -> None:
    """A verifier that drops its bonus token is still lossless: the next round makes it up."""

    def short(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        emitted = own(tokens, draft, target, rng)
        return emitted[:-1] if len(emitted) == len(tokens) + 1 > 1 else emitted

    def truncated(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        return own(tokens, draft, target, rng)[-1:]

    assert fr.certify(short, cases=few).lossless
    assert not fr.certify(truncated, cases=few).lossless


def test_a_wrong_probability_is_shown(few: list[Case]) -> None:
    def first(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        return [int(rng.random() < 0)]  # token 0 for certain

    case = few[0]
    chance = float(np.prod([case.target((0,) * n)[0] for n in range(case.length)]))
    words = f"the text {[0] * case.length} comes with probability 1, and the target gives it"
    assert f"in the case {case.name!r} {words} {chance:.4g}." in str(fr.certify(first, cases=few))


@pytest.mark.parametrize("method", ["auto", "exact", "sampled"])
def test_errors_of_the_function_are_told_with_the_case(
    few: list[Case], method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        raise ZeroDivisionError("mine")

    message = f"fails in the case '{few[0].name}'. Received broken: ZeroDivisionError: mine"
    with pytest.raises(fr.InputError, match=message) as told:
        fr.certify(broken, cases=few[:1], samples=1000, method=method)
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    assert "are sampled" not in capsys.readouterr().err


def test_a_function_with_other_arguments_is_told_how_it_is_called(few: list[Case]) -> None:
    def two(tokens: Any, target: Any) -> list[int]:
        return [0]

    message = r"does not take 4 arguments. Received two\(tokens.*called as f\(draft_tokens"
    with pytest.raises(fr.InputError, match=message):
        fr.certify(two, cases=few)
    with pytest.raises(fr.InputError, match="does not take 5 arguments"):
        fr.certify(lambda tokens, draft, target, rng: [0], cases=tree_cases())


@pytest.mark.parametrize("method", ["auto", "exact", "sampled"])
@pytest.mark.parametrize(("answer", "received"), [(3, "the int 3"), (None, "the NoneType None")])
def test_a_function_that_returns_no_list(
    few: list[Case], method: str, answer: Any, received: str
) -> None:
    message = f"must return the ids that it emits.*Received {received}. Return a list"
    with pytest.raises(fr.InputError, match=message):
        fr.certify(lambda *_: answer, cases=few, method=method, samples=1000)


def test_bad_arguments(few: list[Case]) -> None:
    with pytest.raises(fr.InputError, match=r"verifies nothing. Received int. Pass a rule"):
        fr.certify(3)  # type: ignore[arg-type]
    with pytest.raises(fr.InputError, match=r"method is not known.*'best'.*'auto'"):
        fr.certify(own, method="best")
    with pytest.raises(fr.InputError, match=r"Too few samples.*10.*1000"):
        fr.certify(own, samples=10)
    with pytest.raises(fr.InputError, match="own way of drawing"):
        fr.certify("ratio", draw=lambda model, count, rng: ([], []))
    with pytest.raises(fr.InputError, match=r"cannot be listed.*the value of.*method='sampled'"):
        fr.certify(by_inverse, cases=few, method="exact")
    with pytest.raises(fr.InputError, match="no rule of that name"):
        fr.certify("rato")
