"""`speculative_sampling`: exactly N tokens, with the target's joint law."""

import inspect
import math
from typing import Any

import numpy as np
import pytest

import forerun as fr
from cases import for_all
from forerun.classic import numpy_loop
from forerun.classic.numpy_loop import speculative_sampling
from forerun.proof.branches import Path, every_path
from forerun.proof.cases import contextual, mixed
from forerun.proof.chance import Chance
from forerun.proof.law import Model, target_law

PROMPT = (1, 0)


def scorer(model: Model) -> Any:
    """A model of prefixes as the loop wants it: ids (L,) -> (L, V), every row its own context."""
    return lambda ids: np.array([model(tuple(ids[: end + 1])) for end in range(len(ids))])


def test_signature() -> None:
    parameters = list(inspect.signature(speculative_sampling).parameters)
    assert parameters == ["x", "draft_model", "target_model", "N", "K"]


@for_all("num_new", [0, 1, 2, 3, 5, 8])
@for_all("draft_length", [0, 1, 2, 4, 9])
def test_exactly_n_tokens_follow_the_prompt(num_new: int, draft_length: int) -> None:
    good = scorer(contextual(3, 0))
    for drafter in (good, scorer(contextual(3, 1))):
        found = speculative_sampling(np.array(PROMPT), drafter, good, num_new, draft_length)
        assert found.shape == (len(PROMPT) + num_new,)
        assert tuple(found[: len(PROMPT)]) == PROMPT


@pytest.mark.parametrize(
    ("vocab_size", "num_new", "draft_length"),
    [(2, 3, 1), (2, 3, 2), (3, 2, 1), (3, 2, 3), (3, 1, 0)],
)
def test_joint_law_is_the_targets(
    draw_from: Any,
    monkeypatch: pytest.MonkeyPatch,
    vocab_size: int,
    num_new: int,
    draft_length: int,
) -> None:
    """Every outcome of every coin and draw, listed: several rounds, rows that see their context."""
    target = contextual(vocab_size, 0)
    draft = mixed(target, contextual(vocab_size, 1), 0.4)
    found = np.zeros((vocab_size,) * num_new)

    def run(path: Path) -> tuple[tuple[int, ...], float]:
        rng = Chance(path)
        draw_from(rng)
        monkeypatch.setattr(
            numpy_loop, "_sample", lambda row, *address: int(rng.choice(len(row), p=row))
        )
        x = speculative_sampling(
            np.array(PROMPT), scorer(draft), scorer(target), num_new, draft_length
        )
        return tuple(int(token) for token in x[len(PROMPT) :]), rng.weight

    for tokens, weight in every_path(run):
        found[tokens] += weight
    wanted = target_law(lambda prefix: target(PROMPT + prefix), num_new)
    assert np.abs(found - wanted).max() < 1e-12


def test_joint_law_holds_for_numpys_global_generator() -> None:
    """Sampled: with 4 cells and n runs the distance exceeds `limit` by chance once in a million."""
    target, draft, runs = contextual(2, 0), contextual(2, 1), 800
    np.random.seed(0)  # noqa: NPY002
    counts = np.zeros((2, 2))
    for _ in range(runs):
        x = speculative_sampling(np.array(PROMPT), scorer(draft), scorer(target), 2, 1)
        counts[tuple(x[len(PROMPT) :])] += 1
    wanted = target_law(lambda prefix: target(PROMPT + prefix), 2)
    limit = math.sqrt((4 * math.log(2) + math.log(1e6)) / (2 * runs))
    assert np.abs(counts / runs - wanted).sum() / 2 < limit


def test_draft_tokens_follow_the_draft_model() -> None:
    """`_sample` against its row over many addresses, with the same kind of limit."""
    row, runs = np.array([0.5, 0.0, 0.2, 0.3]), 1500
    drawn = [numpy_loop._sample(row, 5, first, first % 3) for first in range(runs)]
    found = np.bincount(drawn, minlength=4) / runs
    limit = math.sqrt((4 * math.log(2) + math.log(1e6)) / (2 * runs))
    assert np.abs(found - row).sum() / 2 < limit
    assert found[1] == 0


def test_numpys_seed_repeats_the_text() -> None:
    model, draft = scorer(contextual(3, 0)), scorer(contextual(3, 1))

    def text(seed: int) -> list[int]:
        np.random.seed(seed)  # noqa: NPY002
        return [int(token) for token in speculative_sampling([0], draft, model, 12, 3)]  # type: ignore[arg-type]

    assert text(3) == text(3)
    assert len({tuple(text(seed)) for seed in range(5)}) > 1


def test_every_round_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position where a round starts is its address: never the same one twice in a text."""
    starts, original = list[int](), numpy_loop.verify

    def watched(*args: Any, **kwargs: Any) -> Any:
        starts.extend(kwargs["positions"])
        return original(*args, **kwargs)

    monkeypatch.setattr(numpy_loop, "verify", watched)
    model, draft = scorer(contextual(3, 0)), scorer(contextual(3, 1))
    speculative_sampling(np.array(PROMPT), draft, model, 12, 2)
    assert len(set(starts)) == len(starts) > 3


def test_an_equal_drafter_needs_few_target_passes() -> None:
    model, passes = scorer(contextual(3, 0)), []

    def counted(ids: Any) -> Any:
        passes.append(len(ids))
        return model(ids)

    speculative_sampling(np.array(PROMPT), model, counted, 12, 3)
    assert passes == [5, 9, 13]  # three rounds of 3 drafts and a bonus


def test_single_precision_models_are_welcome() -> None:
    model = scorer(contextual(3, 0))
    single = lambda ids: model(ids).astype(np.float32)  # noqa: E731
    assert len(speculative_sampling(np.array(PROMPT), single, single, 5, 2)) == 7


def bad_rows(value: Any) -> Any:
    return lambda ids: np.array(value)


GOOD = scorer(contextual(3, 0))


@pytest.mark.parametrize(
    ("x", "draft_model", "target_model", "num_new", "draft_length", "message"),
    [
        ([], GOOD, GOOD, 3, 2, "token ids"),
        ([[1, 2]], GOOD, GOOD, 3, 2, "token ids"),
        ([0.5], GOOD, GOOD, 3, 2, "token ids"),
        ([0], GOOD, GOOD, -1, 2, "N is too small"),
        ([0], GOOD, GOOD, 3, -1, "K is too small"),
        ([0], GOOD, bad_rows([0.5, 0.25, 0.25]), 3, 0, "one row of probabilities per id"),
        ([0], GOOD, bad_rows([[3.0, -1.0, 0.5]]), 1, 0, "negative"),
        ([0], GOOD, bad_rows([[0.5, 0.5, 0.5]]), 1, 0, "sum to 1"),
        ([0], scorer(contextual(4, 0)), GOOD, 3, 2, "wrong shape"),
    ],
)
def test_bad_input(
    x: Any, draft_model: Any, target_model: Any, num_new: int, draft_length: int, message: str
) -> None:
    with pytest.raises(fr.InputError, match=message):
        speculative_sampling(x, draft_model, target_model, num_new, draft_length)
