"""Trees through the engine: under `match` the text is that of plain decoding, whatever the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drafting import Branching, Saying, noisy_copy
from hypothesis import given, settings
from hypothesis import strategies as st
from processors import CallCounter, Toggle
from reciting import TEXT, Reciter
from tiny_models import Architecture

import forerun as fr
from forerun import InputError, Sampling, Tree, UnsupportedError
from forerun.drafters import Guess, Model, NGram, Suffix, Turn
from forerun.engine.proposal import Proposal, worthwhile
from forerun.models import TableModel
from forerun.rules import Match
from forerun.rules.types import Drawn

TABLE = TableModel.random(vocab_size=6, order=2, seed=1)
OTHER = TableModel.random(vocab_size=6, order=1, seed=2)
PROMPTS = [[1, 2], [3], [5, 4, 3, 2, 1]]


def flat(found: Any) -> list[fr.Generation]:
    return [each for one in found for each in (one if isinstance(one, list) else [one])]


def shown(found: Any) -> list[Any]:
    return [(each.tokens, each.text, each.finish_reason) for each in flat(found)]


def remembering(found: Any, vocab_size: int) -> Branching:
    texts = [answer.prompt_tokens + answer.tokens for answer in flat(found)]
    return Branching(texts, vocab_size)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"sampling": Sampling(seed=3, n=2)},
    {"sampling": [Sampling(seed=3), Sampling(temperature=0.0), Sampling(seed=9, top_p=0.8)]},
    {"sampling": Sampling(seed=4, repetition_penalty=1.4, frequency_penalty=0.3)},
    {"sampling": Sampling(seed=4, processors=[CallCounter()])},
    {"sampling": Sampling(seed=5, processors=[Toggle()], min_tokens=5), "stop_tokens": [4]},
    {"sampling": Sampling(seed=5, bad_words=[[1, 2], [3]]), "stop_tokens": [0]},
    {"sampling": Sampling(seed=6, grammar=lambda out: [0, 2, 4] if len(out) % 2 else [1, 3, 5])},
    {"sampling": Sampling(seed=6, temperature=1.5), "max_new_tokens": [1, 2, 30]},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "tree",
    [9, pytest.param(Tree.of_branching((2, 2, 1)), marks=pytest.mark.slow)],
    ids=["grown", "given"],
)
def test_the_text_is_that_of_plain_decoding(options: dict[str, Any], tree: int | Tree) -> None:
    how: dict[str, Any] = {"max_new_tokens": 20} | options
    plain = fr.generate(TABLE, PROMPTS, drafter=None, **how)
    for drafter, batch_size in (
        (remembering(plain, 6), 3), (Model(OTHER), 1), (Model(OTHER), 3), (Model(TABLE), 3),
        (NGram(min_n=1), 1), (Suffix(), 3),
    ):  # fmt: skip
        found = fr.generate(
            TABLE, PROMPTS, drafter=drafter, tree=tree, draft_length=4, batch_size=batch_size,
            **how,
        )  # fmt: skip
        assert shown(found) == shown(plain)
        assert all(answer.stats.notes == [] for answer in flat(found))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_tree_of_any_drafter(data: st.DataObject) -> None:
    how: dict[str, Any] = {
        "sampling": Sampling(
            temperature=data.draw(st.sampled_from([0.0, 0.7, 1.3])),
            seed=data.draw(st.integers(0, 2**64 - 1)),
            presence_penalty=data.draw(st.sampled_from([0.0, 1.0])),
        ),
        "max_new_tokens": data.draw(st.lists(st.integers(1, 15), min_size=3, max_size=3)),
        "stop_tokens": data.draw(st.sampled_from([(), (4,)])),
        "logprobs": data.draw(st.sampled_from([None, 2])),
    }
    plain = fr.generate(TABLE, PROMPTS, drafter=None, **how)
    found = fr.generate(
        TABLE, PROMPTS, drafter=remembering(plain, 6), tree=data.draw(st.integers(1, 20)),
        draft_length=data.draw(st.integers(1, 6)), **how,
    )  # fmt: skip
    assert shown(found) == shown(plain)
    for one, other in zip(found, plain, strict=True):
        assert one.logprobs == other.logprobs


@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen2", "gpt2"))]
)
def test_transformers_models(kind: str) -> None:
    """A cache whose paths are gathered, ragged batches, a drafting model that scores trees."""
    settings_ = {"n_embd": 32, "n_layer": 2, "n_head": 4} if kind == "gpt2" else None
    model = Architecture(kind, "crop", settings_ or {}).build()
    target = fr.wrap(model)
    drafter = Model(noisy_copy(model, 0.1))
    for sampling in (Sampling(temperature=0.0), Sampling(seed=5, temperature=0.9)):
        how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 24}
        plain = fr.generate(target, PROMPTS, drafter=None, **how)
        for each in (drafter, remembering(plain, target.vocab_size)):
            found = fr.generate(target, PROMPTS, drafter=each, tree=10, draft_length=4, **how)
            assert shown(found) == shown(plain)
            assert all(answer.stats.notes == [] for answer in found)
        chain = fr.generate(target, PROMPTS, drafter=drafter, draft_length=4, **how)
        wide = fr.generate(target, PROMPTS, drafter=drafter, tree=12, draft_length=4, **how)
        rounds = [sum(answer.stats.rounds for answer in each) for each in (chain, wide)]
        assert rounds[1] <= rounds[0], "more guesses of the same drafter need no more rounds"


def test_a_model_that_cannot_score_trees_gets_chains() -> None:
    mamba = fr.wrap(Architecture("mamba", "snapshot").build())
    how: dict[str, Any] = {"sampling": Sampling(seed=2), "max_new_tokens": 12}
    plain = fr.generate(mamba, PROMPTS, drafter=None, **how)
    found = fr.generate(mamba, PROMPTS, drafter=remembering(plain, 6), tree=8, **how)
    assert shown(found) == shown(plain)
    for answer in found:
        assert any("cannot score trees, so drafts were chains" in n for n in answer.stats.notes)
    with pytest.raises(UnsupportedError, match="a sampled tree may not be cut to a chain"):
        fr.generate(
            mamba, PROMPTS, drafter=Model(mamba), rule="traversal", tree=Tree.of_branching((2,))
        )


def test_stops_inside_a_path() -> None:
    """An ending token, a stop string and a limit, each in the middle of an accepted path."""
    target = Reciter(TEXT)
    whole = fr.generate(target, target.prompt(), drafter=None, max_new_tokens=60)
    knowing = Branching([target.script], target.vocab_size)
    cut = []
    for how in (
        {"stop": "stop"},
        {"stop": ["你好", "answers"]},
        {"stop_tokens": whole.tokens[4:5]},
        {"max_new_tokens": 3},
    ):
        plain = fr.generate(target, target.prompt(), drafter=None, **how)
        sampling = fr.Sampling(temperature=0, seed=1)  # trees depend on it
        drafted = {"drafter": knowing, "tree": 24, "draft_length": 8, "sampling": sampling}
        found = fr.generate(target, target.prompt(), **drafted, **how)
        assert shown([found]) == shown([plain])
        assert found.text == plain.text
        cut.append(found.stats.rounds < len(found.tokens))
    assert all(cut), "nothing was accepted, so nothing was cut"


def test_counts_of_a_tree() -> None:
    """Two branches of two, the second one right: four were drafted, two accepted."""
    certain = TableModel(3, 1, {(): [1, 0, 0], (0,): [0, 1, 0], (1,): [0, 0, 1], (2,): [1, 0, 0]})
    saying = Saying(lambda turn: Guess([2, 1, 2, 2], parents=[-1, -1, 0, 1]))
    answer = fr.generate(certain, [0], drafter=saying, tree=4, draft_length=3, max_new_tokens=4)
    assert answer.tokens == [1, 2, 0, 1]
    assert [fate.value for fate in answer.fates] == ["accepted", "accepted", "bonus", "bonus"]
    assert (answer.stats.rounds, answer.stats.drafted, answer.stats.accepted) == (2, 4, 2)
    assert answer.stats.reached_by_position == [1, 1]
    assert answer.stats.acceptance_by_position == [1.0, 1.0]


def test_an_equal_drafter_is_always_right_with_a_tree() -> None:
    answer = fr.generate(
        TABLE, [1], drafter=Model(TABLE), tree=12, draft_length=4, max_new_tokens=25,
        sampling=Sampling(seed=5, temperature=1.3, top_p=0.9),
    )  # fmt: skip
    assert answer.stats.rounds == 5, "the first arrival is always among the children"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda turn: Guess([1, 2], parents=[-1, 1]), "parent of node 1 is not an earlier node"),
        (lambda turn: Guess([1, 2], parents=[-1, -2]), "not an earlier node"),
        (lambda turn: Guess([1, 2], parents=[-1]), "its parents do not fit"),
        (lambda turn: Guess([1] * 9, parents=[-1] * 9), "more tokens than it was asked for"),
        (lambda turn: Guess([1] * 4, parents=[-1, 0, 1, 2]), "too many tokens after one another"),
        (lambda turn: Guess([1, 9], parents=[-1, -1]), "not in the target's vocabulary"),
        (lambda turn: Guess([1] * 4), "too many tokens after one another"),
    ],
)
def test_trees_that_break_their_promise(answer: Any, message: str) -> None:
    """They cost the request its drafts, and nothing else."""
    how: dict[str, Any] = {"sampling": Sampling(seed=1), "max_new_tokens": 12}
    plain = fr.generate(TABLE, [1], drafter=None, **how)
    found = fr.generate(TABLE, [1], drafter=Saying(answer), tree=8, draft_length=3, **how)
    assert found.tokens == plain.tokens
    (note,) = found.stats.notes
    assert message in note


class Arrays(Match):
    """The rule as it is written for arrays, which the engine does not take for `match` itself."""


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tree", [None, 9])
def test_the_engines_walk_is_the_rule(temperature: float, tree: int | None) -> None:
    """Token by token and round by round, over chains and trees, options and stops."""
    for seed in range(5):
        sampling = Sampling(temperature=temperature, seed=seed, presence_penalty=seed % 2)
        how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 25, "stop_tokens": [4]}
        plain = fr.generate(TABLE, PROMPTS, drafter=None, **how)
        drafter = remembering(plain, 6) if tree else Model(OTHER)
        both = [
            fr.generate(
                TABLE, PROMPTS, drafter=drafter, tree=tree, draft_length=5, rule=rule, **how
            )
            for rule in (Match(), Arrays())
        ]
        assert shown(both[0]) == shown(both[1]) == shown(plain)
        for one, other in zip(*both, strict=True):
            assert one.fates == other.fates
            assert one.stats.accepted_by_round == other.stats.accepted_by_round


def test_a_tree_where_a_chain_was_asked_for() -> None:
    saying = Saying(lambda turn: Guess([1, 2], parents=[-1, -1]))
    found = fr.generate(TABLE, [1], drafter=saying, max_new_tokens=9)
    assert "it proposed a tree" in found.stats.notes[0]


def uniform(count: int) -> np.ndarray[Any, Any]:
    return np.full((count, 6), 1 / 6)


@pytest.mark.parametrize(
    ("guess", "message"),
    [
        (Guess([1, 2], Drawn.PRUNED, uniform(2), [-1, -1]), "chose its guesses by their tokens"),
        (Guess([1, 2], Drawn.SHARED, None, [-1, -1]), "used the target's noise"),
        (Guess([1], Drawn.SAMPLED, uniform(1), [-1]), "its tree is not the one it was asked for"),
        (Guess([1, 2], Drawn.SAMPLED, uniform(1), [-1, -1]), "probabilities have a wrong shape"),
    ],
)
def test_a_law_only_rule_refuses_what_it_cannot_judge(guess: Guess, message: str) -> None:
    tree = Tree.of_branching((2, 1))
    found = fr.generate(
        TABLE, [1], drafter=Saying(lambda turn: guess), tree=tree, rule="siblings",
        max_new_tokens=9,
    )  # fmt: skip
    assert message in found.stats.notes[0]
    assert found.stats.drafted == 0


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"tree": 0}, InputError, "tree is out of range. Received 0"),
        ({"tree": 2.5}, InputError, "tree has a wrong type. Received the float 2.5"),
        ({"tree": "2,2"}, InputError, r"wrong type. Received the str '2,2'.*of_branching\(\(2, 2"),
        ({"tree": 8, "rule": "ratio"}, UnsupportedError, "This rule judges chains only"),
        ({"tree": 8, "rule": "traversal"}, UnsupportedError, "Pass a shape known before"),
    ],
)
def test_trees_that_cannot_be_honoured(how: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fr.generate(TABLE, [1], drafter=Model(OTHER), **how)


def test_turns_say_what_is_wanted() -> None:
    asked: list[Turn] = []

    def listen(turn: Turn) -> Guess:
        asked.append(turn)
        return Guess()

    shape = Tree.of_branching((2, 2, 1))
    fr.generate(TABLE, [1], drafter=Saying(listen), tree=shape, max_new_tokens=3)
    assert [len(turn.shape) for turn in asked if turn.shape is not None] == [6, 2]
    asked.clear()
    fr.generate(TABLE, [1], drafter=Saying(listen), tree=7, draft_length=2, max_new_tokens=4)
    assert [(t.budget, t.depth, t.is_chain) for t in asked] == [
        (7, 2, False), (7, 2, False), (7, 1, False),
    ]  # fmt: skip


def test_what_is_not_worth_its_slot_is_left_out() -> None:
    values = [0.9, 0.3, 0.2]
    chain = worthwhile(Proposal([5, 6, 7], values=values), 0.3, values)
    assert (chain.tokens, chain.tree, chain.values) == ([5, 6], None, [0.9, 0.3])
    values = [0.6, 0.1, 0.4, 0.9, 0.3]
    tree = Proposal([5, 6, 7, 8, 9], tree=Tree((-1, -1, 0, 1, 2)), values=values)
    kept = worthwhile(tree, 0.3, values)
    assert (kept.tokens, kept.tree) == ([5, 7, 9], None)  # 8 comes after one that is out
    kept = worthwhile(tree, 0.05, values)
    assert (kept.tokens, kept.tree) == (tree.tokens, tree.tree)
    assert worthwhile(tree, 0.95, values).tokens == []
    silent = Proposal([5, 6])
    assert worthwhile(silent, 0.9, [0.95, 0.95]) is silent
