"""The compiled pass of a block network computes what the plain one does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_blocks import tiny_block_network

from forerun.drafters.block.torch_runner import TorchBlockRunner

pytest.importorskip("numba")


def pair(**changes: Any) -> tuple[Any, Any, int]:
    from forerun.drafters.block.lean_runner import LeanBlockRunner

    network = tiny_block_network(**changes)
    for norm in (network.norm_feature, network.norm_head, *(x.norm for x in network.layers)):
        norm.weight.data += 0.1 * torch.randn_like(norm.weight)
    for layer in network.layers:
        for conv in (layer.conv_attention, layer.conv_mlp) if network.design.conv_taps else ():
            torch.nn.init.normal_(conv.base)
            torch.nn.init.normal_(conv.kernel.weight, std=0.1)
    table = torch.randn(61, 32)
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    lean = LeanBlockRunner(network.design, weights, table.numpy().__getitem__, 1)
    return TorchBlockRunner(network, table), lean, network.design.num_features


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"has_head_norms": False, "num_layers": 1, "anchor_guesses": False},
        {"state_norm": "none", "biases": ("fuse", "qkv", "output", "gate_up", "down")},
        {"conv_taps": 3, "conv_group": 8, "selector_rank": 6, "embedding_scale": 1.5},
    ],
)
def test_rows_that_grow_together_and_alone(changes):
    plain, lean, width = pair(**changes)
    rng = np.random.default_rng(0)
    states = [runner.start(3, 400) for runner in (plain, lean)]
    # the second prompt takes several passes; later rounds tell a few tokens of some of the rows
    for told in ({0: 5, 1: 300, 2: 1}, {0: 3}, {2: 4, 0: 1}, {0: 2, 1: 2, 2: 2}, {1: 126}):
        hidden = [rng.standard_normal((count, width)).astype(np.float32) for count in told.values()]
        tokens = [rng.integers(61, size=count).tolist() for count in told.values()]
        found = [
            runner.extend(state, list(told), hidden, tokens)
            for runner, state in zip((plain, lean), states, strict=True)
        ]
        assert found[0].shape == found[1].shape
        scale = np.abs(found[0]).max()
        np.testing.assert_allclose(found[1], found[0], atol=2e-3 * scale)
    for runner, state in zip((plain, lean), states, strict=True):
        runner.release(state, 1)
    hidden = [rng.standard_normal((7, width)).astype(np.float32)]
    fresh = lean.start(1, 20)
    again = lean.extend(states[1], [1], hidden, [[1] * 7])
    np.testing.assert_array_equal(again, lean.extend(fresh, [0], hidden, [[1] * 7]))


def test_a_row_is_the_same_in_any_company():
    _, lean, width = pair()
    rng = np.random.default_rng(1)
    hidden = [rng.standard_normal((count, width)).astype(np.float32) for count in (9, 40, 100)]
    tokens = [rng.integers(61, size=len(part)).tolist() for part in hidden]
    together = lean.start(3, 200)
    found = lean.extend(together, [0, 1, 2], hidden, tokens)
    for row in range(3):
        alone = lean.start(1, 200)
        np.testing.assert_array_equal(
            lean.extend(alone, [0], hidden[row : row + 1], tokens[row : row + 1])[0], found[row]
        )
