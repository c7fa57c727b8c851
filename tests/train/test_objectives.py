"""Later steps count where the guesses before them are right, checked draft by draft."""

from __future__ import annotations

import pytest
import torch
from tiny_training import some_texts, tiny_training

from forerun.train.course import forward_kl, mixed, top_one
from forerun.train.teacher import Batch
from forerun.train.unroll import STEP_WEIGHTS, StepWeights, unroll

NUM_STEPS = 3


def by_hand(training, batch: Batch) -> float:
    """The loss, one draft after the other."""
    course = training.course
    decay, least = course.weights
    teacher, network = course.teacher, course.network
    hidden, final = teacher.watch(batch.tokens)
    embeddings = teacher.embedding[batch.tokens]
    outputs = list(unroll(network, hidden, embeddings, NUM_STEPS, 0))
    reach = dict(zip(zip(batch.rows.tolist(), batch.places.tolist(), strict=True),
                     batch.reach.tolist(), strict=True))  # fmt: skip
    total = 0.0
    counts = [sum(known > step for known in reach.values()) for step in range(NUM_STEPS)]
    for row in range(len(batch.tokens)):
        for start in range(batch.tokens.shape[1]):
            is_right = True
            for step in range(NUM_STEPS):
                place = start + 1 + step
                if reach.get((row, place), 0) <= step:
                    break
                probs, likeliest = teacher.laws(final[row, place][None])
                logits = network.logits(outputs[step][row, start])[None]
                loss = forward_kl(logits, probs, teacher.to_draft[likeliest])
                total += decay**step * (1 if is_right else least) * float(loss) / counts[step]
                guess = teacher.draft_tokens[int(logits.argmax())]
                is_right = is_right and bool(guess == batch.tokens[row, place + 1])
    return total


@pytest.mark.parametrize("weights", [*STEP_WEIGHTS.values(), StepWeights(1.0, 0.0)])
def test_the_loss_is_that_of_the_drafts_one_by_one(tmp_path, weights):
    training = tiny_training(tmp_path, 1)
    course = training.course
    course.num_steps, course.weights = NUM_STEPS, weights
    with torch.no_grad():
        course.network.head.weight[:] = 0
        course.network.head.weight[7] = 1  # the same guess everywhere
        course.network.norm_head.weight[:] = 1
        texts = some_texts(6)
        for text in texts:
            text.tokens[::2] = 7  # so that it is right now and then
        batch = Batch.of(texts, torch.device("cpu"))
        assert float(course.loss(batch, 0)) == pytest.approx(by_hand(training, batch), rel=1e-4)


def test_mix_is_the_mean_of_both_also_outside_the_draft_vocabulary():
    generator = torch.Generator().manual_seed(0)
    probs = 0.9 * torch.rand((50, 9), generator=generator).softmax(-1)
    best = torch.where(torch.arange(50) % 4 == 0, -1, probs.argmax(-1))
    logits = torch.randn((50, 9), generator=generator)
    mean = (forward_kl(logits, probs, best) + top_one(logits, probs, best)) / 2
    torch.testing.assert_close(mixed(logits, probs, best), mean)
