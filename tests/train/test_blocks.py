"""Blocks along a text are those of drafting, and their loss is that of the guesses one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_blocks import tiny_block_network
from tiny_heads import tiny_llama
from tiny_training import some_texts

from forerun.drafters.block.torch_runner import TorchBlockRunner
from forerun.train.blocks import BlockRecipe, run_blocks
from forerun.train.course import forward_kl
from forerun.train.shards import epoch
from forerun.train.teacher import Batch, Teacher


@pytest.mark.parametrize("from_anchor", [True, False])
def test_blocks_along_a_text_are_those_of_drafting(from_anchor):
    network = tiny_block_network(anchor_guesses=from_anchor)
    embedding = torch.randn(61, 32)
    hidden, tokens = torch.randn(2, 12, network.design.num_features), torch.randint(61, (2, 12))
    places = torch.tensor([0, 3, 10])
    with torch.no_grad():
        outputs = run_blocks(network, hidden, embedding, tokens, places)
        found = network.logits(outputs)
    assert found.shape == (2, 3, 4 if from_anchor else 3, 40)
    runner = TorchBlockRunner(network, embedding)
    for row in range(2):
        for column, place in enumerate(places.tolist()):
            state = runner.start(1, 20)
            fed = [tokens[row, 1 : place + 2].tolist()]
            logits = runner.extend(state, [0], [hidden[row, : place + 1]], fed)
            np.testing.assert_allclose(logits[0], found[row, column], rtol=1e-4, atol=1e-4)


def test_the_loss_is_that_of_the_guesses_one_by_one():
    model = tiny_llama(seed=3).requires_grad_(False)
    network = tiny_block_network()
    teacher = Teacher(model, network.design.layers, torch.arange(40))
    recipe = BlockRecipe(block_size=4, num_layers=2, stride=3)
    course = recipe.course(network, teacher, forward_kl)
    batch = Batch.of(some_texts(6), torch.device("cpu"))
    reach = {
        (row, place): known
        for row, place, known in zip(
            batch.rows.tolist(), batch.places.tolist(), batch.reach.tolist(), strict=True
        )
    }
    with torch.no_grad():
        hidden, final = teacher.watch(batch.tokens)
        for step in (0, 4):
            places = torch.arange(batch.first + step % 3, batch.tokens.shape[1] - 1, 3)
            logits = network.logits(
                run_blocks(network, hidden, teacher.embedding, batch.tokens, places)
            )
            sums, counts = np.zeros(4), np.zeros(4)
            for row in range(len(batch.tokens)):
                for column, start in enumerate(places.tolist()):
                    for guess in range(4):
                        place = start + 1 + guess
                        if reach.get((row, place), 0) <= guess:
                            break
                        probs, best = teacher.laws(final[row, place][None])
                        loss = forward_kl(logits[row, column, guess][None], probs, best)
                        sums[guess] += float(loss)
                        counts[guess] += 1
            assert counts.min() > 0
            expected = (np.exp(-np.arange(4) / 4) * sums / counts).sum()
            assert float(course.loss(batch, step)) == pytest.approx(expected, rel=1e-4)


def test_a_block_learns_a_text_by_heart():
    torch.manual_seed(0)
    model = tiny_llama(seed=3).requires_grad_(False)
    recipe = BlockRecipe(block_size=4, num_layers=1, stride=2)
    design = recipe.design(model.config, 61, None, 5)
    network = recipe.network(replace(design, num_tokens=61))
    network.initialise(model.get_output_embeddings().weight)
    course = recipe.course(network, Teacher(model, design.layers, torch.arange(61)), forward_kl)
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3)
    (texts,) = epoch(some_texts(4), 1000, 0, 0)
    batch, losses = Batch.of(texts, torch.device("cpu")), []
    for step in range(40):
        loss = course.loss(batch, step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert np.mean(losses[-4:]) < 0.75 * np.mean(losses[:4])
