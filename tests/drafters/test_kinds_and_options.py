"""Every kind of trained or published drafter under the options that users mix: the text of plain
decoding in each, and a drafter that never fails."""

from __future__ import annotations

import asyncio
import string
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from automata import Sums
from published_folders import KINDS, SEED
from tiny_heads import VOCAB_SIZE, tiny_llama
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import forerun as fr
from forerun.trees.tree import Tree

LETTERS = (string.ascii_letters + string.digits)[:VOCAB_SIZE]
SHORT = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]
LONG = [[(7 * place) % VOCAB_SIZE for place in range(3000)], [5, 9, 3]]
SHAPE = Tree.of_branching((2, 1))
GREEDY = fr.Sampling(temperature=0.0)
WARM = fr.Sampling(temperature=0.9, seed=3)
BOUND = fr.Sampling(temperature=0.9, seed=3, grammar=Sums(((3, 8, 20), (5, 9), (12, 40, 41))))
HELD = fr.Sampling(temperature=0.9, seed=3, repetition_penalty=1.3, logit_bias={4: 2.0}, top_k=12)

OPTIONS: dict[str, tuple[fr.Sampling, dict[str, Any]]] = {
    "auto, greedy": (GREEDY, {}),
    "auto, sampled": (WARM, {}),
    "chain": (WARM, {"draft_length": 3}),
    "tree": (WARM, {"draft_length": 3, "tree": 7}),
    "greedy tree": (GREEDY, {"draft_length": 3, "tree": 7}),
    "shape": (WARM, {"draft_length": 2, "tree": SHAPE}),
    "grammar": (BOUND, {"draft_length": 3}),
    "grammar, tree": (BOUND, {"draft_length": 3, "tree": 7}),
    "penalties": (HELD, {"draft_length": 3}),
    "penalties, tree": (HELD, {"draft_length": 3, "tree": 7}),
    "ratio": (GREEDY, {"draft_length": 3, "rule": "ratio"}),
    "block": (GREEDY, {"draft_length": 3, "rule": "block"}),
    "siblings": (GREEDY, {"draft_length": 2, "tree": SHAPE, "rule": "siblings"}),
    "traversal": (GREEDY, {"draft_length": 2, "tree": SHAPE, "rule": "traversal"}),
    "one row": (WARM, {"draft_length": 3, "batch_size": 1}),
    "samples": (replace(WARM, n=2), {"draft_length": 3}),
}
USUAL = ("eagle3", "dflash2", "medusa", "mtp of speculators")
"""One kind of every class; the others are other files for the same code."""
COINS = {"ratio": None, "block": None, "siblings": SHAPE, "traversal": SHAPE}


def letters() -> Any:
    """A tokenizer of one letter per token."""
    words = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}))
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=words)


@cache
def target_of(kind: str) -> Any:
    model = tiny_llama(SEED, max_position_embeddings=4096)
    if kind == "plain":
        return fr.wrap(model, letters())
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    return LeanModel(model, letters())


@pytest.fixture(scope="module", params=["lean", pytest.param("plain", marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest) -> Any:
    return target_of(request.param)


def answers_of(found: Any) -> list[fr.Generation]:
    return [each for one in found for each in (one if isinstance(one, list) else [one])]


def tokens_of(found: Any) -> list[list[int]]:
    """The tokens of all answers; fails if a drafter did."""
    answers = answers_of(found)
    assert [each.stats.notes for each in answers] == [[]] * len(answers)
    return [each.tokens for each in answers]


def generated(
    target: Any, drafter: Any, sampling: fr.Sampling, prompts: Any = SHORT, **options: Any
) -> Any:
    how = {"max_new_tokens": 9, "ignore_eos": True, **options}
    return fr.generate(target, prompts, drafter=drafter, sampling=sampling, **how)


@cache
def plain(target: Any, name: str) -> list[list[int]]:
    return tokens_of(generated(target, None, OPTIONS[name][0]))


@cache
def plain_long(target: Any) -> list[list[int]]:
    return tokens_of(generated(target, None, WARM, LONG))


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=[] if kind in USUAL else pytest.mark.slow) for kind in KINDS],
)
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    name, write = KINDS[request.param]
    place: Path = tmp_path_factory.mktemp("kinds") / "folder"
    return f"{name}:{write(place)}"


def test_the_text_is_that_of_plain_decoding(drafter: str, target: Any) -> None:
    for name, (sampling, options) in OPTIONS.items():
        found = generated(target, drafter, sampling, **options)
        assert tokens_of(found) == plain(target, name), name
        drafted = sum(each.stats.drafted for each in answers_of(found))
        assert drafted > 0 or "draft_length" not in options, name


def test_rules_with_coins_give_whole_answers_that_repeat(drafter: str, target: Any) -> None:
    for rule, tree in COINS.items():
        how: dict[str, Any] = {"rule": rule, "tree": tree, "draft_length": 2}
        one, again = (tokens_of(generated(target, drafter, WARM, **how)) for _ in range(2))
        assert one == again, rule
        assert [len(tokens) for tokens in one] == [9] * len(SHORT)


def test_a_long_prompt_beside_a_short_one_and_a_stop_string(drafter: str, target: Any) -> None:
    assert tokens_of(generated(target, drafter, WARM, LONG, draft_length=3)) == plain_long(target)
    whole = [[LETTERS[token] for token in tokens] for tokens in plain(target, "chain")]
    stop = "".join(whole[0][4:6])
    how = {"stop": stop, "draft_length": 3}
    found, expected = (
        generated(target, drafter, WARM, **how),
        generated(target, None, WARM, stop=stop),
    )
    assert [each.text for each in found] == [each.text for each in expected]
    assert found[0].finish_reason == "stop_string"


def test_streams_and_an_engine_that_has_drafted_before(drafter: str, target: Any) -> None:
    how: dict[str, Any] = {"max_new_tokens": 9, "ignore_eos": True, "sampling": WARM}
    told: dict[int, list[int]] = {}
    for piece in fr.stream(target, SHORT, drafter=drafter, draft_length=3, **how):
        told.setdefault(piece.index, []).extend(piece.tokens)
    assert [told[index] for index in range(len(SHORT))] == plain(target, "chain")

    async def twice() -> list[Any]:
        async with fr.AsyncEngine(target, drafter=drafter, draft_length=3) as engine:
            first = await asyncio.gather(*(engine.submit(each, **how) for each in SHORT))
            rest = await asyncio.gather(*(engine.submit(each, **how) for each in [*LONG, *SHORT]))
            return [*first, *rest]

    found = tokens_of(asyncio.run(asyncio.wait_for(twice(), 60)))
    assert found == [*plain(target, "chain"), *plain_long(target), *plain(target, "chain")]
