"""`Heads` in the engine guesses what training says it would, and refuses what does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import array_api_compat as compat
import numpy as np
import pytest
import torch
from tiny_heads import VOCAB_SIZE, network_of, save_drafter, tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Guess, Heads, Turn
from forerun.drafters.heads import fitting
from forerun.drafters.heads.files import Trained
from forerun.drafters.heads.torch_runner import TorchRunner
from forerun.models import TableModel
from forerun.noise.race import exponentials, seed_key
from forerun.sampling.options import Bans, Sampling
from forerun.sampling.options import law as law_of
from forerun.testing import Witness, check_drafter
from forerun.train.unroll import unroll
from forerun.trees.tree import Tree

XP = compat.array_namespace(np.empty(0))
PROMPTS = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]
NUM_NEW = 8
GREEDY = Sampling(temperature=0.0)


@cache
def model(use: str = "target") -> Any:
    """One for each use: a pass that shows its hidden states leaves hooks behind."""
    return tiny_llama(seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("heads")
    save_drafter(place, model())
    return place


@pytest.fixture
def plain():
    return fr.wrap(model())


@pytest.fixture(params=["plain", "lean"])
def target(request, plain, monkeypatch):
    """The model under either pass, each with a runner of its own kind."""
    if request.param == "plain":
        return plain
    pytest.importorskip("numba")
    from forerun.lean import storage
    from forerun.lean.model import LeanModel

    monkeypatch.setattr(storage, "BLOCKS_PAY", False)  # floats: products of bytes are coarse
    return LeanModel(model("lean"))


@pytest.fixture(scope="module")
def reference(folder):
    return Reference(fitting.load(folder))


@dataclass
class Reference:
    """The drafter run over whole texts, as training does it."""

    trained: Trained

    def __post_init__(self):
        self.network = network_of(self.trained)
        self.known = {}

    def law(self, text: tuple[int, ...], path: list[int]) -> np.ndarray[Any, Any]:
        """Logits (Vd,) of what comes after a text and some guesses."""
        self.run(text, path)
        return self.known[(text, *path)]

    def run(self, text: tuple[int, ...], path: list[int]) -> None:
        """One pass, unless they are known, for the laws after a text and each guess of a path."""
        if (text, *path) in self.known:
            return
        ids = torch.tensor([[*text, *path]])
        with torch.no_grad():
            states = model("reference").base_model(ids, output_hidden_states=True).hidden_states
            hidden = torch.cat([states[layer] for layer in self.trained.design.layers], -1)
            embeddings = model("reference").get_input_embeddings()(ids)
            for step, output in enumerate(
                unroll(self.network, hidden, embeddings, len(path) + 1, 0)
            ):
                logits = self.network.logits(output[0, len(text) - 2])
                self.known[(text, *path[:step])] = logits.numpy()

    def first(self, turn: Turn, text: tuple[int, ...], path: list[int]) -> list[int]:
        """The tokens after it, the first to be guessed first."""
        logits, tokens = self.law(text, path), self.trained.tokens
        if turn.sampling.temperature == 0:
            return tokens[np.argsort(-logits)].tolist()
        racing = np.argsort(-logits)[:32]
        position = np.array([turn.position + len(path)])
        key = seed_key(XP, [turn.seed], None)
        noise = exponentials(XP, key, position, tokens[racing][None])[0]
        times = noise / np.exp(logits[racing].astype(np.float64) / turn.sampling.temperature)
        return tokens[racing[np.argsort(times)]].tolist()


def run(target, folder, **how):
    witness = Witness(Heads(folder), VOCAB_SIZE)
    how = {"sampling": GREEDY, "max_new_tokens": NUM_NEW, "ignore_eos": True} | how
    found = fr.generate(target, PROMPTS, drafter=witness, **how)
    assert not any(answer.stats.notes for answer in found)
    return found, witness.seen


def texts(target, prompts, sampling):
    """What plain decoding says."""
    found = fr.generate(
        target, prompts, drafter=None, sampling=sampling, max_new_tokens=NUM_NEW, ignore_eos=True
    )
    return [answer.tokens for answer in found]


def assert_first_children(reference, turn, text, guess: Guess) -> None:
    """Each node's children are those the reference would try first, in that order."""
    tree = Tree.chain(len(guess.tokens)) if guess.parents is None else Tree(tuple(guess.parents))
    for leaf in tree.leaves:
        reference.run(text, [guess.tokens[above] for above in tree.path(leaf)])
    for node in (-1, *range(len(tree))):
        children = [guess.tokens[child] for child in tree.children[node]]
        path = [guess.tokens[above] for above in tree.path(node)] if node >= 0 else []
        if children:
            assert children == reference.first(turn, text, path)[: len(children)]


@pytest.mark.parametrize(
    ("target", "temperature"),
    [
        ("lean", 0.0),
        ("lean", 0.8),
        pytest.param("plain", 0.0, marks=pytest.mark.slow),
        pytest.param("plain", 0.8, marks=pytest.mark.slow),
    ],
    indirect=["target"],
)
@pytest.mark.parametrize(("tree", "length"), [(None, 4), (9, 3), (Tree.of_branching((2, 2)), 2)])
def test_guesses_are_those_of_training(target, folder, reference, temperature, tree, length):
    sampling = Sampling(temperature=temperature, seed=4)
    found, seen = run(
        target, folder, tree=tree, draft_length=length, sampling=sampling, batch_size=2
    )
    assert [answer.tokens for answer in found] == texts(target, PROMPTS, sampling)
    for each in seen:
        assert bool(each.guess.tokens) == (each.turn.position > 0 and each.turn.budget > 0)
        assert_first_children(reference, each.turn, each.text, each.guess)
    longest = max(len(each.guess.tokens) for each in seen)
    assert longest == (length if tree is None else tree if isinstance(tree, int) else len(tree))


def test_rounds_without_a_draft_are_caught_up_with(target, folder, reference):
    class NowAndThen(Heads):
        rounds = 0

        def propose(self, state, turns, *, shared_noise):
            self.rounds += 1
            resting = self.rounds % 4 != 0
            turns = [replace(turn, budget=0) if resting else turn for turn in turns]
            return super().propose(state, turns, shared_noise=shared_noise)

    witness = Witness(NowAndThen(folder), VOCAB_SIZE)
    fr.generate(target, PROMPTS, drafter=witness, max_new_tokens=NUM_NEW, ignore_eos=True)
    drafts = [each for each in witness.seen if each.guess.tokens]
    assert len(drafts) >= len(PROMPTS)
    for each in drafts:
        assert_first_children(reference, each.turn, each.text, each.guess)


def test_asking_twice_gives_the_same_guess(plain, folder):
    class Twice(Heads):
        def propose(self, state, turns, *, shared_noise):
            once = super().propose(state, turns, shared_noise=shared_noise)
            assert super().propose(state, turns, shared_noise=shared_noise) == once
            return once

    found = fr.generate(
        plain, PROMPTS, drafter=Twice(folder), tree=9, draft_length=3, max_new_tokens=8
    )
    assert not any(answer.stats.notes for answer in found)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 2},
        {"top_p": 0.3},
        {"min_p": 0.5},
        {"logit_bias": dict.fromkeys(range(0, VOCAB_SIZE, 2), -np.inf)},
    ],
    ids=lambda options: "+".join(options),
)
@pytest.mark.parametrize("tree", [None, 9])
def test_options_narrow_the_guesses(plain, folder, reference, options, tree):
    """What the request rules out of the draft law is not guessed."""
    sampling = Sampling(temperature=0.9, seed=1, **options)
    found, seen = run(plain, folder, sampling=sampling, tree=tree, draft_length=3)
    expected = fr.generate(
        plain, PROMPTS, drafter=None, sampling=sampling, max_new_tokens=NUM_NEW, ignore_eos=True
    )
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    drafts = [each for each in seen if each.guess.tokens]
    for each in drafts:
        wide = np.full(VOCAB_SIZE, -np.inf, np.float32)
        wide[reference.trained.tokens] = reference.law(each.text, [])
        law = law_of(sampling, wide, (), (), Bans())
        assert law.weights[each.guess.tokens[0]] > 0
    assert drafts


def test_a_batch_may_mix_ways_of_choosing(plain, folder):
    samplings = [
        Sampling(temperature=0.7, seed=1),
        Sampling(temperature=0.7, seed=2, repetition_penalty=1.3),
        Sampling(temperature=0.0, logit_bias={7: 1.0}),
    ]
    together, _ = run(plain, folder, sampling=samplings, tree=9, draft_length=3)
    for prompt, sampling, answer in zip(PROMPTS, samplings, together, strict=True):
        expected = fr.generate(
            plain, prompt, drafter=None, sampling=sampling, max_new_tokens=NUM_NEW, ignore_eos=True
        )
        assert answer.tokens == expected.tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_precisions(folder, dtype):
    """The network follows its target; random weights in half precision still say much the same."""
    target = fr.wrap(tiny_llama(seed=3).to(dtype))
    found, seen = run(target, folder, tree=9, draft_length=3)
    assert [answer.tokens for answer in found] == texts(target, PROMPTS, GREEDY)
    assert all(each.guess.tokens for each in seen if each.turn.position > 0 and each.turn.budget)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("tree", [None, 9])
def test_guesses_are_the_same_on_a_gpu(folder, reference, tree):
    target = fr.wrap(tiny_llama(seed=3).cuda())
    _, seen = run(target, folder, tree=tree, draft_length=3)
    for each in seen:
        assert_first_children(reference, each.turn, each.text, each.guess)


@pytest.mark.parametrize(
    "target", [pytest.param("plain", marks=pytest.mark.slow), "lean"], indirect=True
)
def test_conformance(target, folder):
    check_drafter(lambda: Heads(folder), target, prompts=PROMPTS[:3])


def test_another_target_is_refused_by_both_names(folder):
    for other in (tiny_llama(seed=4), tiny_llama(seed=3, num_hidden_layers=3)):
        wrapped = fr.wrap(other)
        wrapped.name = "somebody-else"
        with pytest.raises(UnsupportedError, match=r"tiny.*somebody-else"):
            fr.generate(wrapped, [1, 2], drafter=Heads(folder))


def test_a_target_without_hidden_states_is_refused(folder):
    with pytest.raises(UnsupportedError, match="hidden states"):
        fr.generate(TableModel.random(VOCAB_SIZE, 1, 0), [1, 2], drafter=Heads(folder))


def test_a_missing_shipped_drafter_is_explained(monkeypatch, tmp_path):
    monkeypatch.setattr(fitting, "SHIPPED", tmp_path / "none")
    with pytest.raises(InputError, match="comes without a trained drafter"):
        Heads()


def test_its_runner_is_made_once_per_target(plain, folder, monkeypatch):
    made = []
    start = TorchRunner.start
    monkeypatch.setattr(
        TorchRunner, "start", lambda self, *args: made.append(self) or start(self, *args)
    )
    drafter = Heads(folder)
    for _ in range(2):
        fr.generate(plain, [1, 2], drafter=drafter, max_new_tokens=3)
    assert len(made) == 2
    assert made[0] is made[1]
