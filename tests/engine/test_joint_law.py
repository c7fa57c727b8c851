"""The joint law of whole texts through the real engine: every outcome of every coin, listed.

The engine runs as it ships.  Only its noise is replaced, by one that answers along one path of
the tree of outcomes and multiplies the chances of its answers; all paths together are the law.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from automata import Sums
from drafting import Quiet
from processors import CallCounter

import forerun as fr
from forerun import Sampling
from forerun.drafters import Guess, Model, NGram, Turn, forks
from forerun.engine import stepwise
from forerun.models import TableModel
from forerun.proof.branches import Path, every_path
from forerun.proof.chance import Chance
from forerun.rules.types import Drawn

PROMPT = [1, 0]
ENDING = 2
Law = dict[tuple[int, ...], float]


class ListedNoise:
    """What a rule asks of its noise, for a batch of one, along one path."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance

    def coins(self, slots: list[int], chances: Any) -> Any:
        tossed = [[self.chance.split(float(x)) for x in row] for row in chances]
        return np.array(tossed, dtype=bool).reshape(chances.shape)

    def draw(self, weights: Any) -> Any:
        return np.array([self.chance.pick(row) for row in np.asarray(weights)])

    def race(self, weights: Any, rows: Any, slots: Any) -> Any:
        return self.draw(weights)

    def sample(self, law: Any, row: int, depth: int) -> int:
        return self.chance.pick(law.weights)


@pytest.fixture
def law_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Law]:
    """law_of(target, drafter, ...): how likely each finished text is."""

    def find(target: Any, drafter: Any, **how: Any) -> Law:
        def run(path: Path) -> tuple[tuple[int, ...], float]:
            chance = Chance(path)
            noise = ListedNoise(chance)
            monkeypatch.setattr(stepwise, "TargetNoise", lambda *_, **__: noise)
            monkeypatch.setattr(forks, "_draw", lambda law, *_: chance.pick(law))
            monkeypatch.setattr(forks, "race", lambda _, laws, *__: noise.draw(laws))
            stop = [] if target.vocab_size == ENDING else [ENDING]
            answer = fr.generate(target, PROMPT, drafter=drafter, stop_tokens=stop, **how)
            assert answer.stats.notes == []
            return tuple(answer.tokens), chance.weight

        found: Law = defaultdict(float)
        for tokens, weight in every_path(run):
            found[tokens] += weight
        return found

    return find


def target_law(target: TableModel, limit: int) -> Law:
    """Sampled plainly: a text ends with the ending token or at its limit."""
    found: Law = {(): 1.0}
    for _ in range(limit):
        longer: Law = {}
        for text, chance in found.items():
            if text[-1:] == (ENDING,):
                longer[text] = chance
            else:
                law = target.probs([*PROMPT, *text])
                longer |= {(*text, x): chance * law[x] for x in range(len(law)) if law[x] > 0}
        found = longer
    return found


def distance(first: Law, second: Law) -> float:
    return max(abs(first.get(x, 0.0) - second.get(x, 0.0)) for x in {*first, *second})


class Varying(Quiet):
    """A drafter whose K depends on the text before the draft, which is allowed."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.name = inner, f"varying {inner.name}"

    def start(self, *args: Any) -> Any:
        texts = super().start(*args)
        texts.inner = self.inner.start(*args)
        return texts

    def enter(self, state: Any, *text: Any) -> None:
        super().enter(state, *text)
        self.inner.enter(state.inner, *text)

    def propose(self, state: Any, turns: Sequence[Turn], **how: Any) -> list[Guess]:
        texts = [state[turn.row].tokens for turn in turns]
        limits = [(len(text) + 2 * text[-1]) % 4 for text in texts]
        cut = [replace(t, budget=min(t.budget, k)) for t, k in zip(turns, limits, strict=True)]
        return list(self.inner.propose(state.inner, cut, **how))

    def observe(self, state: Any, outcomes: Any) -> None:
        super().observe(state, outcomes)
        self.inner.observe(state.inner, outcomes)

    def release(self, state: Any, row: int) -> None:
        super().release(state, row)
        self.inner.release(state.inner, row)


TARGET = TableModel.random(vocab_size=3, order=2, seed=1)
DRAFT = TableModel.random(vocab_size=3, order=2, seed=2)
PAIR = TableModel.random(vocab_size=2, order=3, seed=6)
PAIR_DRAFT = TableModel.random(vocab_size=2, order=2, seed=7)
SPARSE = TableModel.random(vocab_size=3, order=2, seed=5, zeros=0.4)
SPARSE_DRAFT = TableModel.random(vocab_size=3, order=1, seed=8, zeros=0.4)


@pytest.mark.parametrize("rule", ["ratio", "block", "match"])
@pytest.mark.parametrize(
    ("target", "drafter", "draft_length", "limit"),
    [
        pytest.param(
            TARGET, Model(DRAFT), 1, 3, marks=pytest.mark.slow
        ),  # as in K = 2's last round
        (TARGET, Model(DRAFT), 2, 3),
        (TARGET, Model(DRAFT, temperature=0.5), 2, 3),
        pytest.param(PAIR, Model(PAIR_DRAFT), 2, 4, marks=pytest.mark.slow),  # K = 3 below
        (PAIR, Model(PAIR_DRAFT), 3, 3),  # a whole draft ends the text
        pytest.param(PAIR, Model(PAIR_DRAFT), 4, 4, marks=pytest.mark.slow),
        (PAIR, Varying(Model(PAIR_DRAFT)), 3, 4),
        pytest.param(SPARSE, Model(DRAFT), 2, 3, marks=pytest.mark.slow),  # both are sparse below
        pytest.param(TARGET, Model(SPARSE_DRAFT), 2, 3, marks=pytest.mark.slow),
        (SPARSE, Model(SPARSE_DRAFT), 2, 4),
        (TARGET, NGram(min_n=1), 3, 4),
        (TARGET, Varying(NGram(max_n=2, min_n=1)), 3, 4),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_joint_law_is_the_targets(
    law_of: Any, rule: str, target: TableModel, drafter: Any, draft_length: int, limit: int
) -> None:
    """Several rounds, K that changes, texts that end early, laws that differ in every context."""
    found = law_of(
        target, drafter, rule=rule, draft_length=draft_length, max_new_tokens=limit,
        sampling=Sampling(),
    )  # fmt: skip
    assert distance(found, target_law(target, limit)) < 1e-12


OPTIONS: list[Sampling] = [
    Sampling(top_k=2),
    Sampling(top_p=0.6, temperature=1.4),
    Sampling(min_p=0.5),
    Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.7),
    Sampling(bad_words=[[0, 1], [1, 1]], min_tokens=2),
    Sampling(processors=[CallCounter()]),
    Sampling(grammar=lambda output: {0, 2} if sum(output) % 2 else {0, 1, 2}),
]


@pytest.mark.parametrize("rule", ["ratio", "block"])
@pytest.mark.parametrize("index", range(len(OPTIONS)))
def test_joint_law_under_every_kind_of_option(law_of: Any, rule: str, index: int) -> None:
    """The same law as that of plain decoding, which lists its outcomes too."""
    how: dict[str, Any] = {"sampling": OPTIONS[index], "max_new_tokens": 3}
    plain = law_of(TARGET, None, **how)
    found = law_of(TARGET, Model(DRAFT), rule=rule, draft_length=2, **how)
    assert distance(found, plain) < 1e-12
    assert distance(plain, target_law(TARGET, 3)) > 1e-3, "the option must matter"


@pytest.mark.parametrize("lies", [False, True])
@pytest.mark.parametrize("rule", ["ratio", "block", "match"])
def test_joint_law_with_forced_tokens(law_of: Any, rule: str, lies: bool) -> None:
    """Of a grammar that forces some tokens, or says that it does."""
    how: dict[str, Any] = {
        "sampling": Sampling(grammar=Sums(((0, 1, 2), (2,), (0, 1)), lies)), "max_new_tokens": 3,
    }  # fmt: skip
    plain = law_of(TARGET, None, **how)
    found = law_of(TARGET, Model(DRAFT), rule=rule, draft_length=2, **how)
    assert distance(found, plain) < 1e-12
    assert distance(plain, target_law(TARGET, 3)) > 1e-3, "the grammar must matter"


class Forgetful(RuntimeError):
    pass


@pytest.mark.parametrize("rule", ["ratio", "block", "match"])
def test_a_draft_that_ends_where_a_grammar_gives_up(law_of: Any, rule: str) -> None:
    """How long the draft is then depends on its own earlier tokens, but never on the one judged."""

    def grammar(output: Any) -> Any:
        if ENDING in output:
            raise Forgetful("nothing follows the end")  # plain decoding never asks
        return range(3)

    found = law_of(
        TARGET, Model(DRAFT), rule=rule, draft_length=2, sampling=Sampling(grammar=grammar),
        max_new_tokens=3,
    )  # fmt: skip
    assert distance(found, target_law(TARGET, 3)) < 1e-12


class Stubborn(Quiet):
    """Always says 1, with the law of a fair die beside it."""

    name = "stubborn"

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn

    def guess(self, turn: Turn) -> Guess:
        return Guess([1] * turn.budget, self.drawn, np.full((turn.budget, 3), 1 / 3))


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_a_lie_about_the_draft_law_shows(law_of: Any, rule: str) -> None:
    """The tests above can fail; and why the law that comes with a draft must be the true one."""
    how: dict[str, Any] = {"draft_length": 2, "max_new_tokens": 3, "sampling": Sampling()}
    found = law_of(TARGET, Stubborn(Drawn.SAMPLED), rule=rule, **how)
    assert distance(found, target_law(TARGET, 3)) > 0.01
    honest = law_of(TARGET, Stubborn(Drawn.POINT), rule=rule, **how)
    assert distance(honest, target_law(TARGET, 3)) < 1e-12


@pytest.mark.parametrize(
    "rule",
    [
        "match",
        pytest.param("ratio", marks=pytest.mark.slow),  # `test_sampled_law` has these by default
        pytest.param("block", marks=pytest.mark.slow),
    ],
)
def test_joint_law_with_the_real_noise(rule: str) -> None:
    """Sampled, in a batch whose requests come and go.

    With c cells and n texts the total variation distance exceeds the limit with a chance of at
    most 2**c * exp(-2 n limit**2) = 1e-6 (Bretagnolle, Huber, Carol).  With 15 cells and 1,000
    texts a bias of 0.17 is missed with odds of 1e-3.
    """
    target, drafter = TARGET, Model(DRAFT)
    num_texts, limit = 1000, 3
    wanted = target_law(target, limit)
    answers = fr.generate(
        target, PROMPT, drafter=drafter, rule=rule, draft_length=2, max_new_tokens=limit,
        stop_tokens=[ENDING], sampling=Sampling(seed=11, n=num_texts), batch_size=100,
    )  # fmt: skip
    counts = Counter(tuple(answer.tokens) for answer in answers)
    cells = {*wanted, *counts}
    found = sum(abs(counts[x] / num_texts - wanted.get(x, 0.0)) for x in cells) / 2
    edge = math.sqrt((len(cells) * math.log(2) + math.log(1e6)) / (2 * num_texts))
    assert found < edge
    assert edge < sum(abs(wanted[x] - 1 / len(wanted)) for x in wanted) / 2, "it can fail"


@pytest.mark.parametrize("rule", ["ratio", "block", "match"])
def test_joint_law_with_a_network_that_reads_hidden_states(
    law_of: Any, rule: str, tmp_path: Any
) -> None:
    """An MTP layer, on passes of float32 whose sizes differ with and without drafts."""
    pytest.importorskip("torch")
    from mtp_reference import Layer
    from tiny_heads import tiny_llama

    target = fr.wrap(tiny_llama(seed=4, vocab_size=4, eos_token_id=ENDING, num_hidden_layers=2))
    drafter = fr.drafters.MTP(Layer("qwen", vocab_size=4).save(tmp_path))
    how: dict[str, Any] = {"sampling": Sampling(temperature=2.0, top_k=2), "max_new_tokens": 3}
    plain = law_of(target, None, **how)
    found = law_of(target, drafter, rule=rule, draft_length=2, **how)
    assert distance(found, plain) < 1e-6
    assert len(plain) > 4, "texts must differ"
