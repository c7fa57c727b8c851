"""Torch code under the stand-in: every way it draws and compares, with exact chances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from forerun.proof.branches import CannotEnumerate, every_path
from forerun.proof.chance import Chance

torch = pytest.importorskip("torch")
WEIGHTS = torch.tensor([0.5, 0.0, 1.5, 2.0], dtype=torch.float64)
ODDS = {0: 0.125, 2: 0.375, 3: 0.5}


def law(code: Callable[[], Any]) -> dict[Any, float]:
    """What the code returns, and how likely."""
    from forerun.proof.tensors import FollowedTensors

    found: dict[Any, float] = defaultdict(float)

    def run(path: Any) -> tuple[Any, float]:
        chance = Chance(path)
        with FollowedTensors(chance):
            result = code()
        return result, chance.weight

    for result, weight in every_path(run):
        found[result] += weight
    return dict(found)


@pytest.mark.parametrize(
    "toss",
    [
        lambda: torch.rand(1).item() < 0.25,
        lambda: bool(torch.rand(()) < 0.25),
        lambda: bool((torch.rand(2, 3)[1:, 2] <= torch.tensor([0.25])).all()),
        lambda: (torch.rand_like(WEIGHTS) < 0.25).tolist()[1],
        lambda: bool((torch.tensor(0.25) > torch.rand(1)).squeeze()),
        lambda: torch.tensor([0.25])[0] >= torch.rand(1).item(),
        lambda: bool(torch.rand(1).log() < torch.tensor(0.25).log()),
        lambda: bool(torch.empty(3).uniform_()[1] * 4 < 1),
        lambda: bool(1 - torch.rand(1) > 0.75),
        lambda: bool(torch.bernoulli(torch.tensor([0.25]))),
        lambda: bool(torch.stack([torch.rand(2), torch.rand(2)]).flatten()[3] < 0.25),
        lambda: bool(torch.cat([torch.rand(1), torch.ones(1)])[0].to(torch.float64) < 0.25),
        lambda: [bool(u < 0.25) for u in torch.rand(2)][1],
        lambda: bool(torch.randint(0, 4, (1,)) == 0),
        lambda: bool(torch.randint(4, (2,))[1] == 2),
        lambda: bool(torch.where(torch.tensor(True), torch.rand(()), torch.ones(())) < 0.25),
        lambda: bool(torch.empty(()).exponential_(2.0) < torch.log(torch.tensor(4 / 3)) / 2),
        lambda: torch.rand(2).numpy()[0] < 0.25,
    ],
)
def test_a_coin(toss: Callable[[], Any]) -> None:
    assert law(lambda: bool(toss())) == pytest.approx({True: 0.25, False: 0.75}, abs=1e-7)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.multinomial(WEIGHTS, 1).item(),
        lambda: WEIGHTS.multinomial(num_samples=1)[0],
        lambda: torch.multinomial(WEIGHTS[None], 1).squeeze(1)[0],
        lambda: torch.distributions.Categorical(probs=WEIGHTS).sample(),
        lambda: (WEIGHTS / torch.empty_like(WEIGHTS).exponential_()).argmax(),
        lambda: torch.argmax(WEIGHTS / torch.empty_like(WEIGHTS).exponential_(1), -1, keepdim=True),
        lambda: WEIGHTS.clone().div_(torch.empty_like(WEIGHTS).exponential_()).argmax(dim=-1),
        lambda: (torch.empty_like(WEIGHTS).exponential_() / WEIGHTS).argmin(),
        lambda: (WEIGHTS.log() - torch.log(-torch.log(torch.rand_like(WEIGHTS)))).argmax(),
        lambda: (WEIGHTS[None] / torch.empty(2, 4).exponential_()).argmax(dim=-1)[1],
    ],
)
def test_a_draw(draw: Callable[[], Any]) -> None:
    assert law(lambda: int(draw())) == pytest.approx(ODDS)


def test_draws_without_replacement() -> None:
    found = law(lambda: tuple(torch.multinomial(WEIGHTS, 2).tolist()))
    assert found[3, 2] == pytest.approx(0.5 * 0.75)
    assert sum(found.values()) == pytest.approx(1)


def test_only_what_is_looked_at_is_picked() -> None:
    """A token for each of eight rows, of which one is read: four outcomes and not 4**8."""
    runs = 0

    def code() -> int:
        nonlocal runs
        runs += 1
        return int(torch.multinomial(WEIGHTS.expand(8, 4), 1)[5])

    assert law(code) == pytest.approx(ODDS)
    assert runs == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.multinomial(torch.tensor([0.5, -0.5]), 1),
        lambda: torch.multinomial(torch.zeros(2), 1),
        lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1),
        lambda: torch.multinomial(torch.ones(2), 3),
        lambda: torch.bernoulli(torch.tensor([1.5])),
        lambda: torch.empty(2).exponential_(-1.0),
    ],
)
def test_what_torch_refuses_is_refused_with_its_words(ask: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError) as real:
        ask()
    with pytest.raises(RuntimeError) as followed:
        law(ask)
    assert str(followed.value) == str(real.value)


@pytest.mark.parametrize(
    "code",
    [
        lambda: float(torch.rand(1)),
        lambda: bool(torch.rand(1)),
        lambda: torch.rand(1) == 0.5,
        lambda: torch.rand(3).sum(),
        lambda: torch.rand(3).sort(),
        lambda: torch.rand(2)[0] < torch.rand(1),
        lambda: torch.randn(1),
        lambda: torch.randperm(3),
        lambda: int(torch.rand(3).argmax()),
        lambda: torch.rand(2000),
        lambda: torch.randint(2**31, (1,)),
        lambda: torch.rand(2, out=torch.empty(2)),
        lambda: torch.allclose(torch.rand(2), torch.zeros(2)),
        lambda: torch.minimum(torch.rand(2), torch.ones(2)),
    ],
)
def test_whatever_else_is_done_cannot_be_listed(code: Callable[[], Any]) -> None:
    with pytest.raises(CannotEnumerate):
        law(code)
