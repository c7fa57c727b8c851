"""The torch runner computes what training unrolled: chains, trees, batches, rows used again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_heads import VOCAB_SIZE, tiny_network

from forerun.drafters.heads.torch_runner import TorchRunner
from forerun.train.unroll import unroll

LENGTH = 12


@pytest.fixture
def network():
    return tiny_network()


@pytest.fixture
def embedding():
    return torch.randn(VOCAB_SIZE, 32, generator=torch.Generator().manual_seed(1))


def text(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB_SIZE, (LENGTH,), generator=generator)


def states(network, seed):
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randn(LENGTH, network.design.num_features, generator=generator)


def unrolled(network, embedding, hidden, tokens, num_steps):
    """Logits (steps, T, Vd) of one text."""
    with torch.no_grad():
        outputs = unroll(network, hidden[None], embedding[tokens][None], num_steps, 0)
        return torch.stack([network.logits(output)[0] for output in outputs]).numpy()


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", [0, 3, 7])
def test_a_chain_is_what_training_unrolled(network, embedding, start):
    tokens, hidden = text(0), states(network, 0)
    expected = unrolled(network, embedding, hidden, tokens, 4)
    runner = TorchRunner(network, embedding)
    rows = runner.start(1, 64)
    known = tokens.tolist()
    close(
        runner.extend(rows, [0], [hidden[: start + 1]], [known[1 : start + 2]]),
        expected[0, [start]],
    )
    for step in range(1, 4):
        found = runner.step(rows, [0], [step - 2], [known[start + 1 + step]])
        close(found, expected[step, [start]])


def test_rows_of_a_batch_do_not_see_each_other(network, embedding):
    runner = TorchRunner(network, embedding)
    rows = runner.start(3, 64)
    texts = {0: (text(0), states(network, 0), 9), 2: (text(2), states(network, 2), 4)}
    expected = {
        row: unrolled(network, embedding, hidden, tokens, 2)
        for row, (tokens, hidden, _) in texts.items()
    }
    features = [hidden[:count] for _, hidden, count in texts.values()]
    following = [tokens[1 : count + 1].tolist() for tokens, _, count in texts.values()]
    found = runner.extend(rows, list(texts), features, following)
    close(found, [expected[row][0, texts[row][2] - 1] for row in texts])
    guesses = [int(tokens[count + 1]) for tokens, _, count in texts.values()]
    found = runner.step(rows, list(texts), [-1, -1], guesses)
    close(found, [expected[row][1, texts[row][2] - 1] for row in texts])


def test_text_in_pieces_is_the_text_at_once_and_guesses_leave_no_trace(network, embedding):
    tokens, hidden = text(5), states(network, 5)
    expected = unrolled(network, embedding, hidden, tokens, 1)[0]
    runner = TorchRunner(network, embedding)
    rows = runner.start(1, 64)
    known = tokens.tolist()
    at = 0
    for count in (3, 1, 4):
        found = runner.extend(
            rows, [0], [hidden[at : at + count]], [known[at + 1 : at + count + 1]]
        )
        at += count
        close(found[0], expected[at - 1])
        runner.step(rows, [0, 0], [-1, -1], [7, 8])
        runner.step(rows, [0], [1], [9])


def test_each_path_of_a_tree_is_a_chain_of_its_own(network, embedding):
    runner = TorchRunner(network, embedding)
    tokens, hidden = text(3), states(network, 3)
    tree, guesses = [-1, -1, 0, 0, 1, 2], [5, 6, 7, 8, 9, 10]
    rows = runner.start(2, 64)
    for row in (0, 1):
        runner.extend(rows, [row], [hidden[:6]], [tokens[1:7].tolist()])
    levels = ([0, 1], [2, 3, 4], [5])
    found = np.concatenate(
        [
            runner.step(
                rows, [0] * len(level), [tree[n] for n in level], [guesses[n] for n in level]
            ).copy()
            for level in levels
        ]
    )
    for node in range(len(tree)):
        path = [node]
        while tree[path[0]] >= 0:
            path.insert(0, tree[path[0]])
        runner.extend(rows, [1], [hidden[:6]], [tokens[1:7].tolist()])
        runner.release(rows, 1)
        runner.extend(rows, [1], [hidden[:6]], [tokens[1:7].tolist()])
        for depth, each in enumerate(path):
            alone = runner.step(rows, [1], [depth - 1], [guesses[each]])
        close(found[node], alone[0])
    assert not np.allclose(found[2], found[3])  # or siblings would not be told apart
