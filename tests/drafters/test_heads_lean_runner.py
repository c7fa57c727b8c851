"""The lean runner of a drafting network against the one in torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from forerun.drafters.heads.design import Design
from forerun.drafters.heads.files import from_blocks, to_blocks
from forerun.drafters.heads.lean_runner import LeanRunner
from forerun.drafters.heads.network import Network
from forerun.drafters.heads.torch_runner import TorchRunner
from forerun.lean.formats import Format
from forerun.lean.plan import MOST_TOKENS
from forerun.lean.shape import HAS_DOT_PRODUCTS

VOCAB_SIZE = 61
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "head_size": 8, "mlp_size": 64,
    "layers": (1, 2, 4), "num_tokens": 40, "rope_theta": 10_000.0, "norm_eps": 1e-5,
}  # fmt: skip


def network(**changes: Any) -> Network:
    torch.manual_seed(0)
    made = Network(Design(**{**SIZES, **changes}))
    for parameter in made.parameters():
        is_norm = parameter.ndim == 1  # ones would hide a forgotten multiplication
        torch.nn.init.normal_(parameter, mean=float(is_norm), std=0.3)
    return made.eval()


def embedding(size: int = 32) -> Any:
    return torch.randn(VOCAB_SIZE, size, generator=torch.Generator().manual_seed(1))


def lean_runner(net: Network, num_threads: int | None = None) -> LeanRunner:
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    return LeanRunner(net.design, weights, embedding(net.design.hidden_size).numpy(), num_threads)


class Both:
    """Two runners that are asked the same and must say the same."""

    tolerance = 1e-4

    def __init__(self, net: Network, num_rows: int, num_threads: int = 2) -> None:
        table = embedding(net.design.hidden_size)
        self.runners = lean_runner(net, num_threads), TorchRunner(net, table)
        self.states = [runner.start(num_rows, 300) for runner in self.runners]
        self.features = net.design.num_features

    def extend(self, rows: list[int], counts: list[int], generator: random.Random) -> Any:
        torch.manual_seed(generator.randrange(2**31))
        features = [torch.randn(count, self.features) for count in counts]
        tokens = [[generator.randrange(VOCAB_SIZE) for _ in range(count)] for count in counts]
        return self._same("extend", rows, features, tokens)

    def step(self, rows: list[int], parents: list[int], tokens: list[int]) -> Any:
        return self._same("step", rows, parents, tokens)

    def release(self, row: int) -> None:
        for runner, state in zip(self.runners, self.states, strict=True):
            runner.release(state, row)

    def _same(self, verb: str, *arguments: Any) -> Any:
        ours, theirs = (
            getattr(runner, verb)(state, *arguments)
            for runner, state in zip(self.runners, self.states, strict=True)
        )
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=self.tolerance)
        return ours


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_kv_heads": 4, "head_size": 16, "layers": (2,)},
        {"num_heads": 12, "num_kv_heads": 1, "hidden_size": 36, "mlp_size": 50},
    ],
)
def test_random_trees_in_ragged_batches(changes: dict[str, Any]) -> None:
    both, generator = Both(network(**changes), num_rows=3), random.Random(0)
    for row, count in enumerate((1, 40, 5)):
        both.extend([row], [count], generator)
    for _ in range(8):
        rows = generator.sample(range(3), generator.randint(1, 3))
        both.extend(rows, [generator.randint(1, 4) for _ in rows], generator)
        sizes = dict.fromkeys(rows, 0)
        for _ in range(4):
            chosen = sorted(generator.choices(rows, k=generator.randint(1, 6)))
            generator.shuffle(chosen)
            parents = [generator.randint(-1, sizes[row] - 1) for row in chosen]
            both.step(chosen, parents, [generator.randrange(VOCAB_SIZE) for _ in chosen])
            for row in chosen:
                sizes[row] += 1
        if generator.random() < 0.4:
            row = generator.randrange(3)
            both.release(row)
            both.extend([row], [generator.randint(1, 9)], generator)


def test_a_long_prompt_takes_several_passes() -> None:
    both, generator = Both(network(), num_rows=2), random.Random(1)
    both.extend([1, 0], [2 * MOST_TOKENS + 3, 7], generator)
    both.step([1, 0, 1], [-1, -1, -1], [3, 4, 5])
    both.step([1, 1], [1, 0], [6, 7])


def test_a_node_has_the_bits_of_its_path_run_alone() -> None:
    lean, generator = lean_runner(network(), 2), random.Random(2)
    features, tokens = torch.randn(37, 96), [generator.randrange(VOCAB_SIZE) for _ in range(37)]
    parents, guesses = [-1, -1, 0, 0, 1, 2, 4], [5, 6, 7, 8, 9, 10, 11]
    state, alone = lean.start(1, 99), lean.start(1, 99)
    lean.extend(state, [0], [features], [tokens])
    levels = [[0, 1], [2, 3, 4], [5, 6]]
    found = [
        lean.step(state, [0] * len(level), [parents[n] for n in level], [guesses[n] for n in level])
        for level in levels
    ]
    logits = np.concatenate(found)
    for node in range(7):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        lean.release(alone, 0)
        lean.extend(alone, [0], [features], [tokens])
        for depth, each in enumerate(path):
            last = lean.step(alone, [0], [depth - 1], [guesses[each]])
        assert (last[0] == logits[node]).all()


def test_a_saved_drafter_stays_in_8_bits() -> None:
    net = network()
    for parameter in net.parameters():
        if parameter.ndim == 2:
            parameter.data = torch.from_numpy(from_blocks(*to_blocks(parameter.detach().numpy())))
    lean = lean_runner(net)
    assert set(lean.weights.matrices.format) == {Format.BLOCK8}
    both, generator = Both(net, num_rows=1), random.Random(3)
    both.tolerance = 0.16 if HAS_DOT_PRODUCTS else both.tolerance  # inputs have one limb
    logits = both.extend([0], [9], generator)
    assert np.std(logits) > 0.8, "the tolerance says something"
    both.step([0, 0], [-1, -1], [1, 2])
