"""Rules on trees: exact laws by enumeration, how much they keep, and what they refuse."""

from __future__ import annotations

from typing import Any

import array_api_compat as compat
import numpy as np
import pytest

import forerun as fr
from cases import for_all
from forerun import rules
from forerun.noise import race as noise
from forerun.proof import Case, tree_cases
from forerun.proof.cases import certain, contextual, mixed, once, restricted
from forerun.proof.law import Model, Prefix, expected_accepted, joint, rule_step, target_law
from forerun.rules.base import CounterNoise, Trial
from forerun.rules.rows import Dense
from forerun.trees.sibling_laws import Children
from forerun.trees.tree import Tree
from instances import Instance, sample
from libraries import Library, largest_bias

XP = compat.array_namespace(np.empty(0))
ON_TREES = ["match", "siblings", "traversal"]
WAYS = [how.value for how in Children]
EXACT = 1e-12


def error(rule: str, target: Model, draft: Model, shapes: Any, length: int, drawn: str) -> float:
    """The largest difference between a rule's joint law and the target's."""
    found = joint(rule_step(rule, target, draft, drawn), len(target(())), length, shapes)
    return float(np.abs(found - target_law(target, length)).max())


def random_tree(rng: np.random.Generator, num_nodes: int) -> Tree:
    return Tree(tuple(int(rng.integers(-1, node)) for node in range(num_nodes)))


def pair(seed: int) -> tuple[Model, Model]:
    """A target and a drafter of one of five makes, on two or three tokens."""
    size, zeros = 2 + seed % 2, 0.4 if seed % 3 == 0 else 0.0
    target = contextual(size, 3000 + seed, zeros=zeros, sharpness=1 + seed % 2)
    other = contextual(size, 4000 + seed, zeros=zeros)
    half = restricted(contextual(size, 5000 + seed), 0)
    return target, [other, mixed(target, other, 0.6), target, certain(other), half][seed % 5]


# --- the law -----------------------------------------------------------------------------------


@for_all("drawn", WAYS)
@pytest.mark.parametrize("rule", ON_TREES)
@for_all("case", list(tree_cases()))
def test_tree_cases(rule: str, case: Case, drawn: str) -> None:
    assert error(rule, case.target, case.draft, case.draft_length, case.length, drawn) <= EXACT


@for_all("drawn", WAYS)
@pytest.mark.parametrize("rule", ON_TREES)
@pytest.mark.parametrize(
    ("size", "branching"),
    [
        (3, (2, 1)),
        (3, (2, 2)),
        (2, (3, 1, 1)),
        (2, (2, 2, 1)),
        pytest.param(3, (3, 1, 1), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_trees_by_branching(rule: str, size: int, branching: tuple[int, ...], drawn: str) -> None:
    """Laws that differ after every prefix, a drafter that is fair, and one that is far off."""
    tree = Tree.of_branching(branching)
    target, other = contextual(size, 60), contextual(size, 61)
    for draft in (other, mixed(target, other, 0.5)):
        assert error(rule, target, draft, once(tree), tree.height + 1, drawn) <= EXACT


@pytest.mark.parametrize("rule", ON_TREES)
def test_random_trees_and_laws(rule: str) -> None:
    """Forty of them: zeros, equal laws, certainties, and none in common."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tree = random_tree(rng, int(rng.integers(1, 6)))
        target, draft = pair(seed)
        drawn = WAYS[seed // 2 % len(WAYS)]
        assert error(rule, target, draft, once(tree), tree.height + 1, drawn) <= EXACT, seed


@pytest.mark.parametrize("drawn", WAYS)
@pytest.mark.parametrize("rule", ON_TREES)
def test_several_rounds_with_trees_that_follow_the_text(rule: str, drawn: str) -> None:
    target, draft = contextual(2, 40), contextual(2, 41)
    trees = (Tree((-1, -1, 0)), Tree.chain(2), Tree.of_branching((3,)), Tree.chain(0))

    def shapes(prefix: Prefix) -> Tree:
        return trees[(sum(prefix) + len(prefix)) % 4]

    assert error(rule, target, draft, shapes, 5, drawn) <= EXACT


@pytest.mark.parametrize("drawn", ["sampled", "without_replacement"])
@pytest.mark.parametrize("rule", ["siblings", "traversal"])
def test_the_law_of_verify_itself_on_a_tree(rule: str, drawn: str) -> None:
    """With Philox instead of enumeration: the first two tokens over 10,000 rounds.

    A correct rule fails with probability 1e-9 at most.
    """
    rng, count, size = np.random.default_rng(3), 10_000, 3
    first, second = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size)
    tree, everyone = Tree((-1, -1, 0, 1)), np.arange(count)
    laws = np.empty((count, 4, size))
    tokens = np.empty((count, 4), dtype=np.int64)
    laws[:, 0] = laws[:, 1] = 0.4 * first + 0.6 * rng.dirichlet(np.ones(size))
    tokens[:, 0] = sample(rng, laws[:, 0])
    if drawn == "without_replacement":
        laws[everyone, 1, tokens[:, 0]] = 0.0
        laws[:, 1] /= laws[:, 1].sum(axis=1, keepdims=True)
    tokens[:, 1] = sample(rng, laws[:, 1])
    other = rng.dirichlet(np.ones(size), size)
    for node in (2, 3):
        laws[:, node] = other[tokens[:, node - 2]]
        tokens[:, node] = sample(rng, laws[:, node])
    rows = np.empty((count, 5, size))
    rows[:, 0], rows[:, 1], rows[:, 2] = first, second[tokens[:, 0]], second[tokens[:, 1]]
    rows[:, 3:] = 1 / size
    guess = fr.Draft.sampled(tokens, laws, tree=tree)
    emitted = fr.verify(guess, rows, rule=rule, seed=everyone.tolist()).tokens()
    found = np.zeros((size, size))
    for text in emitted:
        after = text[1] if len(text) > 1 else int(sample(rng, second[text[0]]))
        found[text[0], after] += 1 / count
    wanted = first[:, None] * second
    assert np.abs(found - wanted).sum() / 2 <= largest_bias(size**2, count, 1e-9)
    assert sum(len(text) > 1 for text in emitted) > count / 4, "it can fail"


# --- how much is kept --------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", WAYS)
def test_traversal_never_keeps_less_than_the_walk_down(drawn: str) -> None:
    """Thirty random trees and laws for each of the four ways; some gain 3% and more."""
    gains = []
    for seed in range(30):
        rng = np.random.default_rng([seed, 7])
        tree = random_tree(rng, int(rng.integers(2, 7 if seed % 2 == 0 else 5)))
        target, draft = pair(seed)
        down = expected_accepted("siblings", target, draft, tree, drawn)
        up = expected_accepted("traversal", target, draft, tree, drawn)
        assert up >= down - EXACT
        gains.append(up / down - 1 if down else 0.0)
        if tree.height == 1 or drawn == "point":
            assert up == pytest.approx(down, abs=EXACT)
    assert drawn == "point" or max(gains) > 0.03


def test_greedy_plus_one_is_the_best_way_where_the_drafter_is_good() -> None:
    """The order of the appendix of the literature: independent < no replacement < greedy + 1."""
    kept = np.zeros(3)
    tree = Tree.of_branching((2, 2))
    for seed in range(8):
        target = contextual(3, 70 + seed)
        draft = mixed(target, contextual(3, 90 + seed), 0.5)
        ways = WAYS[:3]
        kept += [expected_accepted("traversal", target, draft, tree, way) for way in ways]
    assert kept[0] < kept[1] < kept[2]


def test_greedy_plus_one_keeps_what_the_certain_tokens_have_and_the_overlap_of_the_rest() -> None:
    rng = np.random.default_rng(2)
    for count in (1, 2, 3):
        for _ in range(10):
            target, draft = rng.dirichlet(np.full(5, 0.7), 2)
            top = np.argsort(-draft)[: count - 1]
            rest = np.delete(draft, top) / np.delete(draft, top).sum()
            wanted = target[top].sum() + np.minimum(np.delete(target, top), rest).sum()
            tree = Tree.of_branching((count,))
            found = expected_accepted("siblings", target[None], draft[None], tree, WAYS[2])
            assert found == pytest.approx(wanted, abs=EXACT)


@pytest.mark.parametrize(
    ("tree_rule", "chain_rule"), [("siblings", "ratio"), ("traversal", "block")]
)
def test_on_a_chain_they_keep_what_the_chain_rules_keep(tree_rule: str, chain_rule: str) -> None:
    for seed in range(20):
        target, draft = pair(seed)
        wanted = expected_accepted(chain_rule, target, draft, 3)
        assert expected_accepted(tree_rule, target, draft, 3) == pytest.approx(wanted, abs=EXACT)


def test_siblings_on_a_chain_is_ratio_token_for_token(lib: Library) -> None:
    made = made_up(4, 200, Tree.chain(4), 12)
    draft = fr.Draft.sampled(lib.array(made.tokens), lib.array(made.draft))
    first, second = (
        fr.verify(draft, lib.array(made.target), rule=rule, seed=list(range(200)))
        for rule in ("siblings", "ratio")
    )
    assert first.tokens() == second.tokens()


# --- batches, libraries, rows ------------------------------------------------------------------


def made_up(seed: int, num_rows: int, tree: Tree, size: int) -> Instance:
    """A drafted tree in 64ths, where sums and differences are exact in every library."""
    rng = np.random.default_rng([seed, size])
    laws = rng.dirichlet(np.full(size, 0.4), (num_rows, 2 * len(tree) + 1))
    laws = rng.multinomial(64, laws).astype(np.float64) / 64
    draft, target = laws[:, : len(tree)], laws[:, len(tree) :]
    for node, parent in enumerate(tree.parents):  # a drafter that is right half of the time
        draft[::2, node] = target[::2, parent + 1]
    return Instance(sample(rng, draft), draft, target)


@pytest.mark.parametrize("rule", ON_TREES)
def test_libraries_agree(lib: Library, rule: str) -> None:
    tree = Tree((-1, -1, 0, 0, 1, 2))
    made = made_up(1, 60, tree, 7)
    wanted = fr.verify(
        fr.Draft.sampled(made.tokens, made.draft, tree=tree), made.target, rule=rule, seed=3
    )
    draft = fr.Draft.sampled(lib.array(made.tokens), lib.array(made.draft), tree=tree)
    found = fr.verify(draft, lib.array(made.target), rule=rule, seed=3)
    assert found.tokens() == wanted.tokens()
    assert found.paths == wanted.paths
    assert type(found.num_accepted) is type(lib.array([1]))
    for path, count in zip(found.paths or (), found.num_accepted, strict=True):
        assert tree.path(path[-1] if path else -1) == path
        assert len(path) == int(count)


@pytest.mark.parametrize("rule", ON_TREES)
def test_rows_with_trees_of_their_own(rule: str) -> None:
    """As in the engine: each row's verdict is the one it gets alone."""
    rng, count, size = np.random.default_rng(9), 40, 6
    trees = [random_tree(rng, int(rng.integers(0, 7))) for _ in range(count)]
    widest = max(map(len, trees))
    tokens = np.zeros((count, widest), dtype=np.int64)
    draft = np.full((count, widest, size), np.nan)
    target = np.full((count, widest + 1, size), np.nan)
    for row, tree in enumerate(trees):
        made = made_up(row, 1, tree, size)
        tokens[row, : len(tree)] = made.tokens[0]
        draft[row, : len(tree)], target[row, : len(tree) + 1] = made.draft[0], made.target[0]

    def verdicts(some: list[int], width: int) -> list[tuple[int, int]]:
        trial = Trial(
            XP,
            tokens[some, :width],
            np.array([len(trees[row]) for row in some]),
            Dense(XP, target[some], "target"),
            Dense(XP, draft[some], "draft"),
            trees=[trees[row] for row in some],
        )
        key = noise.seed_key(XP, some, None)
        reached, extra = rules.get(rule).decide(trial, CounterNoise(XP, key, np.array(some)))
        return list(zip(reached.tolist(), extra.tolist(), strict=True))

    together = verdicts(list(range(count)), widest)
    alone = [verdicts([row], len(trees[row]))[0] for row in range(count)]
    assert together == alone
    assert any(reached for reached, _ in together)


@pytest.mark.parametrize("rule", ON_TREES)
def test_lengths_keep_the_first_nodes(rule: str) -> None:
    tree = Tree((-1, -1, 0, 0, 1))
    made = made_up(5, 6, tree, 5)
    lengths = list(range(6))
    draft = fr.Draft.sampled(made.tokens, made.draft, tree=tree, lengths=lengths)
    found = fr.verify(draft, made.target, rule=rule, seed=[8] * 6).tokens()
    for row, count in enumerate(lengths):
        part = slice(row, row + 1)
        short = fr.Draft.point([[]])
        if count:
            tokens, laws = made.tokens[part, :count], made.draft[part, :count]
            short = fr.Draft.sampled(tokens, laws, tree=tree.first(count))
        alone = fr.verify(short, made.target[part, : count + 1], rule=rule, seed=8)
        assert found[row] == alone.tokens()[0]


@pytest.mark.parametrize("rule", ON_TREES)
def test_rows_out_of_reach_are_not_read(rule: str) -> None:
    """Below a node whose token is impossible nothing can be owed, and nothing is read."""
    tree = Tree((-1, -1, 0, 0))
    target, draft = np.full((1, 5, 4), 0.25), np.full((1, 4, 4), 0.25)
    target[0, 0] = [0.0, 0.5, 0.5, 0.0]
    target[0, [1, 3, 4], 1:] = draft[0, 2:, 1:] = np.nan
    guess = fr.Draft.sampled(np.array([[0, 1, 0, 0]]), draft, tree=tree)
    for seed in range(20):
        assert fr.verify(guess, target, rule=rule, seed=seed).tokens()[0][0] in (1, 2)


class Watched:
    """Noise that notes which coins are tossed."""

    def __init__(self, inner: CounterNoise) -> None:
        self.inner, self.draw, self.race = inner, inner.draw, inner.race
        self.tossed: list[int] = []

    def coins(self, slots: list[int], chances: Any) -> Any:
        self.tossed += slots
        return self.inner.coins(slots, chances)


@pytest.mark.parametrize("rule", ["siblings", "traversal"])
def test_no_coin_is_tossed_twice_in_a_round(rule: str) -> None:
    """And those of another round have other addresses, since it starts elsewhere."""
    tree, count = Tree.of_branching((3, 2)), 30
    made = made_up(6, count, tree, 4)
    trial = Trial(
        XP,
        made.tokens,
        np.full(count, len(tree)),
        Dense(XP, made.target, "target"),
        Dense(XP, made.draft, "draft"),
        trees=[tree] * count,
    )
    key = noise.seed_key(XP, list(range(count)), None)
    watched = Watched(CounterNoise(XP, key, np.arange(count)))
    rules.get(rule).decide(trial, watched)
    assert len(watched.tossed) == len(set(watched.tossed)) > 3


# --- what is refused ---------------------------------------------------------------------------

TREE = Tree((-1, -1, 0))
TOKENS, LAWS, ROWS = np.array([[0, 1, 2]]), np.full((1, 3, 4), 0.25), np.full((1, 4, 4), 0.25)


@pytest.mark.parametrize("rule", [name for name in rules.names() if name not in ON_TREES])
def test_rules_for_chains_say_what_to_use(rule: str) -> None:
    with pytest.raises(fr.UnsupportedError, match=r"judges chains only.*3 tokens.*'traversal'"):
        fr.verify(fr.Draft.sampled(TOKENS, LAWS, tree=TREE), ROWS, rule=rule)
    chain = fr.Draft.sampled(TOKENS, LAWS, tree=Tree.chain(3))
    assert fr.verify(chain, ROWS, rule=rule).paths is None


@pytest.mark.parametrize("tree", [TREE, None])
@pytest.mark.parametrize("rule", ["ratio", "block", "siblings", "traversal", "lenient"])
def test_a_pruned_draft_is_refused_where_its_law_matters(rule: str, tree: Tree | None) -> None:
    pruned = fr.Draft.sampled(TOKENS, LAWS, tree=tree, pruned=True)
    if tree is None or rules.get(rule).judges_trees:
        with pytest.raises(fr.UnsupportedError, match=r"chosen by its own tokens.*Draft\.point"):
            fr.verify(pruned, ROWS, rule=rule)
    assert fr.verify(pruned, ROWS, rule="match").lossless


@pytest.mark.parametrize("tree", [Tree((-1, -1)), Tree((-1, -1, 0, 0))])
def test_a_tree_of_another_size(tree: Tree) -> None:
    with pytest.raises(fr.InputError, match=rf"do not fit.*3 tokens and a tree of {len(tree)}"):
        fr.verify(fr.Draft.point(TOKENS, tree=tree), ROWS)


def test_a_token_its_siblings_have_taken() -> None:
    """Without replacement a law has no mass on earlier siblings, so a repeat is a lie."""
    laws = LAWS.copy()
    laws[0, 1] = [0, 1 / 3, 1 / 3, 1 / 3]
    draft = fr.Draft.sampled(np.array([[0, 0, 2]]), laws, tree=TREE)
    with pytest.raises(fr.InputError, match=r"draft probability 0 \(row 0, slot 1\)"):
        fr.verify(draft, ROWS, rule="siblings")
