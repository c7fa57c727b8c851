"""The compiled race has the winners of the race over whole arrays, and the engine runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import Architecture

import forerun as fr
from cases import for_all
from forerun.noise import race as noise
from forerun.noise.race import race_row
from forerun.sampling.options import Law
from libraries import load

numba = pytest.importorskip("numba")

from forerun.lean.crew import wait_for_claim  # noqa: E402
from forerun.lean.forward import forward  # noqa: E402
from forerun.lean.heads_pass import draft  # noqa: E402
from forerun.lean.model import LeanModel  # noqa: E402
from forerun.lean.noise import race  # noqa: E402

NUMPY = load("numpy")
WORDS = np.uint64(5), np.uint64(7)


def winner(law: Law, seed: int, position: int) -> int:
    key = noise.seed_key(NUMPY.xp, [seed], None)
    words = key[0, 0, 0], key[0, 1, 0]
    return race(law.scores, law.best, law.temperature, law.floor, *words, position)


def by_numpy(law: Law, seed: int, position: int) -> int:
    key = noise.seed_key(NUMPY.xp, [seed], None)
    minimum, lane = noise.block_minima(NUMPY.xp, key, np.array([position]), len(law.scores))
    return race_row(law.scores, law.weigh, key, position, minimum[0], lane[0])


def wanted(law: Law, seed: int, position: int) -> int:
    key = noise.seed_key(NUMPY.xp, [seed], None)
    (token,) = noise.race(NUMPY.xp, law.weights[None], key, np.array([position]))
    return int(token)


@for_all("size", [1, 2, 255, 256, 257, 1000, 49152])
@for_all("spread", [0.0, 1.0, 8.0])
@for_all("temperature", [1e-30, 0.1, 1.0, 3.0, 1e6])
def test_it_has_the_winner_of_the_whole_race(size: int, spread: float, temperature: float) -> None:
    """With impossible tokens, with and without a floor, under seeds and positions of any size."""
    rng = np.random.default_rng(size)
    for place, floor_at in ((3, None), (2**40 + 7, 2), (2**62, 5)):
        scores = (spread * rng.normal(size=size)).astype(np.float32)
        scores[rng.random(size) < 0.2] = -np.inf
        scores[rng.integers(size)] = 20.0 if spread == 8 else spread
        floor = -np.inf if floor_at is None else float(np.sort(scores)[-1 - size // floor_at])
        law = Law(scores, scores.max(), temperature, floor)
        seed = int(rng.integers(2**64, dtype=np.uint64))
        expected = wanted(law, seed, place)
        assert winner(law, seed, place) == by_numpy(law, seed, place) == expected


def test_its_winners_follow_the_law() -> None:
    """A correct race fails with probability 1e-9 at most; a bias of 5% is caught in turn."""
    scores = np.array([0.0, 1.0, 2.0, -np.inf, 0.5], np.float32)
    law = Law(scores, scores.max(), 0.7, floor=0.25)
    count = 20_000
    found = np.bincount([winner(law, 5, place) for place in range(count)], minlength=5) / count
    exact = law.weights / law.weights.sum()
    bound = np.sqrt(np.log(2 * 5 / 1e-9) / (2 * count))
    assert np.abs(found - exact).max() < bound
    assert bound < 0.03
    assert found[0] == found[3] == 0


def test_a_lean_model_samples_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text as with NumPy's race, with and without drafts."""
    model: Any = LeanModel(Architecture("llama", "", dtype=torch.float32).build())
    calls: list[int] = []
    original = LeanModel.row_race

    def counting(self: Any, law: Law, seed: Any, position: int) -> int:
        calls.append(position)
        return original(self, law, seed, position)

    monkeypatch.setattr(LeanModel, "row_race", counting)
    options: dict[str, Any] = {
        "sampling": fr.Sampling(temperature=0.9, top_p=0.95, min_p=0.01, seed=4),
        "max_new_tokens": 40,
        "ignore_eos": True,
    }
    plain = fr.generate(model, [1, 2, 3], drafter=None, **options).tokens
    assert calls == list(range(40))
    calls.clear()
    drafted = fr.generate(model, [1, 2, 3], drafter=fr.drafters.Suffix(), **options).tokens
    assert sorted(set(calls)) == list(range(40))
    monkeypatch.delattr(LeanModel, "row_race")
    without = fr.generate(model, [1, 2, 3], drafter=None, **options).tokens
    assert plain == drafted == without


def test_scores_of_another_kind_are_cut_as_they_are_read() -> None:
    model = LeanModel(Architecture("llama", "", dtype=torch.float32).build())
    scores = np.array([0.1, 0.3, 0.7 + 1e-12])
    scores.flags.writeable = False
    assert model.row_race(Law(scores, scores.max(), floor=float(scores.max())), WORDS, 3) == 2


def test_a_law_without_a_token_is_told() -> None:
    model = LeanModel(Architecture("llama", "", dtype=torch.float32).build())
    scores = np.zeros(5, np.float32)
    with pytest.raises(RuntimeError, match=r"best 0\.0, floor 1\.0"):
        model.row_race(Law(scores, scores.max(), floor=1.0), WORDS, 3)


def test_what_is_kept_on_disk_knows_the_files_that_it_is_made_of() -> None:
    """Numba looks at a function's own file and at what it closes over, and nowhere else."""
    kept: list[Any] = [race, forward, draft, wait_for_claim]
    for function in kept:
        assert "revision" in function.py_func.__code__.co_freevars
