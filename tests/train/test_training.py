"""Training learns, can be stopped anywhere, and measures what the engine would do."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from tiny_heads import network_of, save_drafter, tiny_llama, tiny_network
from tiny_training import some_texts, tiny_training

import forerun as fr
from forerun.base.errors import InputError
from forerun.drafters import Heads
from forerun.drafters.heads.network import balance
from forerun.sampling.options import Sampling
from forerun.train.course import OBJECTIVES
from forerun.train.held_out import measure, posterior_delays
from forerun.train.shards import Spoken
from forerun.train.teacher import Batch, Teacher
from forerun.train.training import STATE, TrainingProgress
from forerun.train.unroll import HeadsRecipe

STEPS = 9


def quiet(progress: TrainingProgress, loss: float) -> None: ...


def weights(training):
    return {name: value.clone() for name, value in training.course.network.state_dict().items()}


def run(folder, steps=STEPS):
    training = tiny_training(folder, steps)
    training.resume()
    assert training.run(some_texts(), some_texts(3, seed=9), quiet)
    return training


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def stop_after(training, count, stop):
    """Have a training stopped while it computes its count-th loss."""
    compute, calls = training.course.loss, []

    def loss(batch, step):
        calls.append(batch)
        if len(calls) == count:
            stop()
        return compute(batch, step)

    training.course.loss = loss


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    whole = run(tmp_path / "whole")

    class Killed(BaseException): ...

    def kill():
        raise Killed

    training = tiny_training(tmp_path / "killed", STEPS)
    stop_after(training, 5, kill)
    with pytest.raises(Killed):
        training.run(some_texts(), some_texts(3, seed=9), quiet)
    assert_same(weights(whole), weights(run(tmp_path / "killed")))


@pytest.mark.slow
def test_ctrl_c_ends_the_step_saves_and_goes_on_to_the_same_weights(tmp_path):
    whole = run(tmp_path / "whole")
    training = tiny_training(tmp_path / "stopped", STEPS)
    stop_after(training, 4, lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        training.run(some_texts(), some_texts(3, seed=9), quiet)
    assert signal.getsignal(signal.SIGINT) is before
    again = tiny_training(tmp_path / "stopped", STEPS)
    assert again.resume()
    assert again.progress.steps == 4  # the one that was under way is whole
    assert again.run(some_texts(), some_texts(3, seed=9), quiet)
    assert_same(weights(whole), weights(again))


@pytest.mark.slow
def test_a_pause_is_no_end(tmp_path):
    training = tiny_training(tmp_path, STEPS)
    training.budget = type(training.budget)(None, STEPS, pause_after=0.0)
    assert not training.run(some_texts(), some_texts(3, seed=9), quiet)
    assert training.progress.steps < STEPS
    assert run(tmp_path).progress.steps == STEPS


def test_a_broken_state_is_explained(tmp_path):
    run(tmp_path, steps=1)
    file = tmp_path / STATE
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be read"):
        tiny_training(tmp_path, 1).resume()


def course_of(trained, teacher):
    recipe = HeadsRecipe(1, "fading")
    return recipe.course(network_of(trained), teacher, OBJECTIVES["kl"])


def said_by(model, prompts, count, sampling):
    found = fr.generate(
        fr.wrap(model),
        prompts,
        drafter=None,
        max_new_tokens=count,
        ignore_eos=True,
        sampling=sampling,
    )
    for prompt, answer in zip(prompts, found, strict=True):
        tokens = np.array([*prompt, *answer.tokens], np.int32)
        yield Spoken(tokens, np.arange(len(tokens)) >= len(prompt), "words", sampling.temperature)


@pytest.mark.parametrize("length", [1, 3, 5])
def test_held_out_figures_are_the_rounds_of_the_engine(tmp_path, length):
    """A drafter whose head is the target's own is right now and then, so there is much to count."""
    model = tiny_llama(seed=3)
    trained = save_drafter(tmp_path, model, like_target=True)
    prompts = [[5, 9, 3], [7, 8], [1, 2, 30, 4], [9] * 6]
    spoken = list(said_by(model, prompts, 24, Sampling(temperature=0.0)))
    tokens = torch.from_numpy(trained.tokens)
    teacher = Teacher(tiny_llama(seed=3), trained.design.layers, tokens)
    (figures,) = measure(course_of(trained, teacher), spoken)
    answers = fr.generate(
        fr.wrap(model), prompts, drafter=Heads(tmp_path), draft_length=length,
        max_new_tokens=24, ignore_eos=True,
    )  # fmt: skip
    rounds = sum(answer.stats.rounds - 1 for answer in answers)  # but those that read the prompt
    assert rounds < 23 * len(prompts)
    assert figures.by_group["words"][length - 1] == pytest.approx(23 * len(prompts) / rounds)


@pytest.mark.slow
def test_held_out_figures_of_sampling_are_those_of_the_engine_but_for_noise(tmp_path):
    """The noise is drawn anew given the text, so only the mean over many rounds must agree."""
    model = tiny_llama(seed=3)
    trained = save_drafter(tmp_path, model, like_target=True)
    prompts = [[5 + i % 50, 3 + i % 7] for i in range(60)]
    sampling = [Sampling(temperature=0.8, seed=seed) for seed in range(len(prompts))]
    answers = fr.generate(
        fr.wrap(model), prompts, drafter=Heads(tmp_path), draft_length=3, sampling=sampling,
        max_new_tokens=30, ignore_eos=True, batch_size=60,
    )  # fmt: skip
    spoken = [
        Spoken(np.array([*prompt, *each.tokens], np.int32), np.arange(32) >= 2, "words", 0.8)
        for prompt, each in zip(prompts, answers, strict=True)
    ]
    teacher = Teacher(tiny_llama(seed=3), trained.design.layers, torch.from_numpy(trained.tokens))
    (figures,) = measure(course_of(trained, teacher), spoken)
    real = 29 * len(prompts) / sum(each.stats.rounds - 1 for each in answers)
    assert real > 1.15
    assert figures.by_group["words"][2] == pytest.approx(real, rel=0.04)


def test_noise_given_the_winner_has_the_law_of_noise():
    """Races whose winner comes from the law: all delays together must look like Exp(1)."""
    torch.manual_seed(1)  # not the seed of the delays, or they would know the winners
    law = torch.tensor([0.5, 0.3, 0.15, 0.05])
    winners = torch.multinomial(law, 40_000, replacement=True)
    delays = posterior_delays(law.expand(40_000, 4), torch.arange(4), winners)
    assert torch.equal((delays / law).argmin(1), winners)
    for token in range(4):
        sample = delays[:, token]
        assert sample.mean().item() == pytest.approx(1, abs=0.03)
        assert sample.median().item() == pytest.approx(np.log(2), abs=0.03)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_is_smallest_at_the_target_itself(name):
    generator = torch.Generator().manual_seed(0)
    law = torch.rand((50, 9), generator=generator).softmax(-1)
    best = law.argmax(-1)
    at_target = OBJECTIVES[name]((law.log() * 50 if name == "top1" else law.log()), law, best)
    elsewhere = OBJECTIVES[name](torch.randn((50, 9), generator=generator), law, best)
    assert (at_target.mean() < elsewhere.mean()).item()
    if name in ("kl", "tv"):
        assert (at_target <= elsewhere + 1e-6).all()


def test_hidden_values_count_alike_however_large_they_are():
    """As in Gemma 3, where one dimension of 640 has nine tenths of a state's squared length."""
    network = tiny_network()
    sizes = torch.ones(network.design.num_features)
    sizes[3], sizes[40], sizes[50] = 100.0, 0.0, 1e-9  # 50 is next to nothing and stays small
    hidden = torch.randn(4000, network.design.num_features) * sizes
    balance(network.norm_layers, hidden)
    normed = network.norm_layers(hidden).detach().square().mean(0).sqrt()
    is_plain = sizes == 1
    assert normed[is_plain].sub(1).abs().max() < 0.1
    assert normed[3] == pytest.approx(1, abs=0.1)
    assert normed[40] == 0
    assert normed[50] < 0.01
    before = network.norm_layers.weight.detach().clone()
    balance(network.norm_layers, hidden)
    torch.testing.assert_close(network.norm_layers.weight.detach(), before)


def test_padding_and_prompts_are_not_trained_on():
    short = Spoken(np.array([3, 4, 5, 6], np.int32), np.array([False, True, True, True]))
    long = Spoken(np.arange(3, 23, dtype=np.int32), np.arange(20) >= 17)
    batch = Batch.of([short, long], torch.device("cpu"))
    pairs = list(zip(batch.rows.tolist(), batch.places.tolist(), strict=True))
    assert pairs == [(0, 1), (0, 2), (1, 17), (1, 18)]
    assert batch.next_tokens.tolist() == [5, 6, 21, 22]
    assert batch.reach.tolist() == [1, 2, 1, 2]
