"""A drafting model: its context, vocabulary and temperature are its own, the text is not."""

from __future__ import annotations

from typing import Any

import array_api_compat as compat
import numpy as np
import pytest
from drafting import noisy_copy
from tiny_models import Architecture

import forerun as fr
from forerun import Sampling
from forerun.drafters import Model, Turn
from forerun.models import FunctionModel, TableModel
from forerun.noise.race import exponentials, seed_key
from forerun.rules.types import Drawn

XP = compat.array_namespace(np.empty(0))
TABLE = TableModel.random(vocab_size=6, order=2, seed=1)
OTHER = TableModel.random(vocab_size=6, order=1, seed=2)
PROMPTS = [[1, 2], [3], [5, 4, 3, 2, 1]]


def same_text(target: Any, drafter: Any, **how: Any) -> list[fr.Generation]:
    """The answers with this drafter, after a check that they are those without."""
    how = {"sampling": Sampling(seed=4), "max_new_tokens": 24} | how
    wanted = fr.generate(target, PROMPTS, drafter=None, **how)
    found: list[fr.Generation] = fr.generate(target, PROMPTS, drafter=drafter, **how)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
    return found


def test_a_shorter_context_ends_the_drafting_not_the_text() -> None:
    short = TableModel(6, 2, TABLE.table)
    short.max_context = 9
    for draft_length in (1, 4, 7):
        for answer in same_text(TABLE, Model(short), draft_length=draft_length):
            assert answer.stats.notes == []
            assert answer.stats.acceptance_rate == 1
            last = 9 - len(answer.prompt_tokens)  # the token after a full context can be guessed
            assert set(answer.fates[last + 1 :]) == {fr.Fate.BONUS}
            assert fr.Fate.ACCEPTED in answer.fates[last - 1 : last + 1]


def test_a_shorter_context_of_a_transformers_model() -> None:
    """It has learned positions, and none for what lies past its context."""
    target = fr.wrap(Architecture("llama", "crop").build())
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "max_position_embeddings": 12}
    drafter = Model(Architecture("gpt2", "crop", gpt2).build())
    for answer in same_text(target, drafter, draft_length=5):
        assert answer.stats.notes == []
        assert answer.stats.drafted > 0


@pytest.mark.parametrize("sizes", [(64, 60), (60, 64)])
@pytest.mark.parametrize("rule", ["match", "ratio", pytest.param("block", marks=pytest.mark.slow)])
def test_padded_vocabularies(sizes: tuple[int, int], rule: str) -> None:
    """With one tokenizer, ids past the smaller vocabulary are never drafted, but may be text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    target, draft = (
        fr.wrap(Architecture("llama", "crop", {"vocab_size": size}).build(), tokenizer)
        for size in sizes
    )
    how: dict[str, Any] = {"draft_length": 4, "rule": rule, "max_new_tokens": 16}
    found = fr.generate(target, PROMPTS, drafter=Model(draft), sampling=Sampling(seed=1), **how)
    assert all(answer.stats.drafted > 0 for answer in found)
    assert all(answer.stats.notes == [] for answer in found)
    assert all(0 <= token < sizes[0] for answer in found for token in answer.tokens)
    if rule == "match":
        padding = {sizes[0] - 1: 100.0} if sizes[0] > sizes[1] else {}
        biased = Sampling(seed=1, logit_bias=padding)
        answers = same_text(target, Model(draft), sampling=biased, draft_length=4)
        if padding:
            assert all(answer.tokens[0] == 63 for answer in answers)
            assert all(answer.stats.notes == [] for answer in answers)


@pytest.mark.parametrize("temperature", [None, 0.0, 0.5, 3.0])
def test_temperatures_of_its_own(temperature: float | None) -> None:
    drafter = Model(OTHER, temperature=temperature)
    for wanted in (0.0, 0.7):
        same_text(TABLE, drafter, sampling=Sampling(seed=4, temperature=wanted))


def propose(drafter: Model, budget: int, sampling: Sampling, *more: Any, shared_noise: bool) -> Any:
    """The guess after [1, 2, 3] with the seed 9; more: depth and shape."""
    state = drafter.start(TABLE, 1, 20)
    drafter.enter(state, 0, [1, 2, 3], 1)
    turn = Turn(0, budget, sampling, 9, 2, *more)
    return drafter.propose(state, [turn], shared_noise=shared_noise)[0]


def test_the_law_that_comes_with_a_draft_is_the_one_it_was_drawn_from() -> None:
    """Its own temperature, the request's cuts and penalties, along its own tokens."""
    drafter = Model(OTHER, temperature=0.5)
    sampling = Sampling(top_k=3, presence_penalty=0.5)
    guess = propose(drafter, 4, sampling, shared_noise=False)
    assert guess.drawn is Drawn.SAMPLED
    assert guess.probs is not None
    assert guess.probs.shape == (4, 6)
    text = [1, 2, 3]
    for token, law in zip(guess.tokens, guess.probs, strict=True):
        scores = np.log(OTHER.probs(text))
        scores[list(set(text[1:]))] -= 0.5
        scores[np.argsort(scores)[:3]] = -np.inf
        wanted = np.exp(scores / 0.5)
        np.testing.assert_allclose(law, wanted / wanted.sum(), atol=1e-12)
        assert law[token] > 0
        text.append(token)


def test_shared_noise_needs_no_law() -> None:
    drafter = Model(OTHER)
    guess = propose(drafter, 4, Sampling(), shared_noise=True)
    assert (guess.drawn, guess.probs, len(guess.tokens)) == (Drawn.SHARED, None, 4)


@pytest.mark.parametrize(("own", "wanted"), [(None, 0.0), (0.0, 1.0)])
def test_a_greedy_chain_says_how_sure_it_is(own: float | None, wanted: float) -> None:
    """By its probabilities, not by a law with all on one token; drawn tokens have that law."""
    drafter, sampling = Model(OTHER, temperature=own), Sampling(temperature=wanted)
    guess = propose(drafter, 4, sampling, shared_noise=True)
    assert guess.values is not None
    text, chance = [1, 2, 3], 1.0
    for token, value in zip(guess.tokens, guess.values, strict=True):
        probs = OTHER.probs(text)
        assert token == probs.argmax()
        chance *= probs[token]
        assert value == pytest.approx(chance)
        text.append(token)
    drawn = propose(drafter, 4, sampling, shared_noise=False)
    assert drawn.tokens == guess.tokens
    assert drawn.probs is not None
    np.testing.assert_array_equal(drawn.probs, np.eye(6)[drawn.tokens])


def test_draft_noise_is_the_drafters_own() -> None:
    """Were it the coins' or the target's, accepted tokens would not follow the target.

    The draft's choice and the target's own race at the same address are independent: with 600
    addresses and two fair coins they agree 300 times, give or take 5 standard deviations
    (a chance of 6e-7).
    """
    fair = TableModel(2, 0, {(): [0.5, 0.5]})
    drafter = Model(fair)
    state = drafter.start(fair, 1, 10)
    drafter.enter(state, 0, [0], 1)
    agreed = 0
    for seed in range(600):
        one = Turn(0, 1, Sampling(seed=seed), seed, 0)
        (own,) = drafter.propose(state, [one], shared_noise=False)
        (shared,) = drafter.propose(state, [one], shared_noise=True)
        agreed += own.tokens == shared.tokens
    assert abs(agreed - 300) < 5 * np.sqrt(150)


def test_a_drafter_with_nan_is_done_without() -> None:
    """It says so, rather than never drafting again in silence."""
    broken = FunctionModel(lambda ids: np.full(6, np.nan), vocab_size=6, logits=True)
    for answer in same_text(TABLE, Model(broken)):
        (note,) = answer.stats.notes
        assert "ValueError: its logits hold NaN" in note


def test_options_that_leave_the_drafter_nothing_end_its_draft_only() -> None:
    """The grammar allows only ids that the drafter does not have, in one request of three."""
    narrow = TableModel.random(vocab_size=5, order=1, seed=2)
    padded = FunctionModel(lambda ids: np.append(narrow.probs(ids % 5), 0.0), vocab_size=6)
    samplings = [Sampling(seed=4), Sampling(seed=4, grammar=lambda out: [5]), Sampling(seed=4)]
    found = same_text(TABLE, Model(padded), sampling=samplings)
    assert [answer.stats.notes for answer in found] == [[], [], []]
    assert found[0].stats.drafted > 0
    assert found[1].stats.drafted == 0
    assert set(found[1].tokens) == {5}


def test_one_drafter_serves_many_engines() -> None:
    """State is a value: two streams at once do not disturb each other."""
    model = Architecture("llama", "crop").build()
    target, drafter = fr.wrap(model), Model(noisy_copy(model, 0.1))
    how: dict[str, Any] = {"drafter": drafter, "draft_length": 3, "max_new_tokens": 10}
    wanted = [fr.generate(target, p, sampling=Sampling(seed=1), **how).tokens for p in PROMPTS[:2]]
    streams = [fr.stream(target, p, sampling=Sampling(seed=1), **how) for p in PROMPTS[:2]]
    found: list[list[int]] = [[], []]
    left = [0, 1]
    while left:
        for index in list(left):
            piece = next(streams[index], None)
            if piece is None:
                left.remove(index)
            else:
                found[index] += piece.tokens
    assert found == wanted


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf")])
def test_bad_temperatures(temperature: float) -> None:
    with pytest.raises(fr.InputError, match="draft temperature is out of range"):
        Model(OTHER, temperature=temperature)


def test_children_are_the_first_arrivals_of_the_targets_race() -> None:
    """In the order of arrival, at the position of each level, along each path."""
    shape = fr.Tree.of_branching((3, 2))
    guess = propose(Model(OTHER), len(shape), Sampling(), 2, shape, shared_noise=True)
    assert guess.parents == list(shape.parents)
    key = seed_key(XP, [9], None)
    for node in (-1, 0, 1, 2):
        path = [guess.tokens[at] for at in shape.path(node)]
        noise = exponentials(XP, key, np.array([2 + len(path)]), np.arange(6)[None, :])[0]
        first = np.argsort(noise / OTHER.probs([1, 2, 3, *path]))
        children = [guess.tokens[child] for child in shape.children[node]]
        assert children == first[: len(children)].tolist()


def test_a_tree_that_grows_holds_the_best_paths() -> None:
    """Without noise the value of a node is the product of the draft's probabilities."""
    guess = propose(Model(OTHER), 7, Sampling(temperature=0.0), 3, shared_noise=True)
    assert guess.values is not None
    tree = fr.Tree(tuple(guess.parents or ()))
    assert len(tree) == 7
    for node, value in enumerate(guess.values):
        text, wanted = [1, 2, 3], 1.0
        for at in tree.path(node):
            wanted *= OTHER.probs(text)[guess.tokens[at]]
            text.append(guess.tokens[at])
        assert value == pytest.approx(wanted)
    first = np.sort(OTHER.probs([1, 2, 3]))[::-1]
    level = [value for node, value in enumerate(guess.values) if tree.depths[node] == 0]
    assert level == pytest.approx(first[: len(level)])


def test_a_draft_model_that_cannot_score_trees_grows_along_one_line() -> None:
    mamba = fr.wrap(Architecture("mamba", "snapshot").build())
    target = fr.wrap(Architecture("llama", "crop").build())
    found = same_text(target, Model(mamba), tree=8, draft_length=3)
    assert all(answer.stats.notes == [] for answer in found)
    assert max(max(answer.stats.drafted_by_round) for answer in found) == 8


@pytest.mark.parametrize("children", ["best", None, 3])
def test_unknown_children(children: Any) -> None:
    with pytest.raises(fr.InputError, match="Children cannot be drawn like that"):
        Model(OTHER, children=children)


@pytest.mark.parametrize(("least", "count"), [(0.0, 5), (1.1, 1)])
def test_no_pass_is_run_for_what_is_not_worth_one(least: float, count: int) -> None:
    """Under shared noise, where leaving guesses out changes no law."""
    drafter = Model(TABLE)
    state = drafter.start(TABLE, 1, 32)
    drafter.enter(state, 0, (1, 2), 2)
    turn = Turn(0, 5, Sampling(temperature=1.0), seed=3, position=0, goes_on=[least])
    (guess,) = drafter.propose(state, [turn], shared_noise=True)
    assert len(guess.tokens) == count
    (guess,) = drafter.propose(state, [turn], shared_noise=False)
    assert len(guess.tokens) == 5
