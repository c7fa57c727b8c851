"""The promises of every drafter, as checks that you can run on your own drafter.

    from forerun.testing import check_drafter
    check_drafter(lambda: MyDrafter(), target)

The drafter runs in the real engine while a witness checks every guess.  A broken promise raises
`BrokenPromise`, which says which promise and how it was broken.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.base.clock import ErraticClock, timed_by
from forerun.base.errors import ForerunError, InputError, explain
from forerun.drafters.base import Drafter, Guess, Outcome, Turn
from forerun.drafters.passing_on import PassingOn
from forerun.drafters.texts import Texts
from forerun.drafters.verbs import check_verbs
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.drafting import HARMLESS
from forerun.engine.engine import Engine
from forerun.generation.generate import generate
from forerun.generation.intake import make_request
from forerun.gpu_rounds.choosing import executor_of
from forerun.loading.load import wrap
from forerun.models import TableModel
from forerun.noise.race import race, seed_key
from forerun.rules.match import Match
from forerun.rules.types import Drawn
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree

XP = compat.array_namespace(np.empty(0))
MOST_SIGMAS = 5.0
"""The most standard deviations that a frequency may be off. A correct drafter exceeds this with a
probability of 6e-7."""
NUM_SEEDS = 300
TREE = Tree.of_branching((2, 1))
DRAFT_LENGTH = 5
NUM_STEERED = 16  # requests with draft_length="auto", in which the engine drops guesses


class BrokenPromise(ForerunError, AssertionError):
    """A drafter broke a promise that the rules or the engine rely on."""


@dataclass(frozen=True)
class Seen:
    """One turn as it was asked, with its text and the guess of the drafter."""

    turn: Turn
    text: tuple[int, ...]
    guess: Guess

    @property
    def answer(self) -> tuple[Any, ...]:
        parents = self.guess.parents or range(-1, len(self.guess.tokens) - 1)
        return tuple(self.guess.tokens), tuple(parents), self.guess.drawn


@dataclass
class Witness(PassingOn):
    """Passes every call on to another drafter, and checks and records its guesses."""

    vocab_size: int
    seen: list[Seen] = field(default_factory=list)
    broken: BrokenPromise | None = None  # the first that was noticed; the engine goes on
    texts: Texts = field(default_factory=Texts)

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        self.texts.enter(row, tokens, num_prompt)
        super().enter(state, row, tokens, num_prompt)

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        self.texts.observe(outcomes)
        super().observe(state, outcomes)

    def release(self, state: Any, row: int) -> None:
        self.texts.release(row)
        super().release(state, row)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        guesses = super().propose(state, turns, shared_noise=shared_noise)
        try:
            self._witness(turns, guesses, shared_noise)
        except BrokenPromise as broken:
            self.broken = self.broken or broken
            raise
        return guesses

    def _witness(self, turns: Sequence[Turn], guesses: Any, shared_noise: bool) -> None:
        is_list = isinstance(guesses, Sequence)
        kinds = sorted({type(guess).__name__ for guess in guesses}) if is_list else guesses
        fine = is_list and all(isinstance(guess, Guess) for guess in guesses)
        _promise(fine, "returns a list of Guess from `propose`", kinds, "one Guess per turn")
        _promise(len(guesses) == len(turns), "gives one guess per turn", len(guesses), len(turns))
        for turn, guess in zip(turns, guesses, strict=True):
            self._check(turn, guess, shared_noise)
            self.seen.append(Seen(turn, tuple(self.texts[turn.row].tokens), guess))

    def _check(self, turn: Turn, guess: Guess, shared_noise: bool) -> None:
        count = len(guess.tokens)
        most = f"{turn.budget} at most, by turn.budget"
        _promise(count <= turn.budget, "keeps to its budget", f"{count} tokens", most)
        inside = all(0 <= token < self.vocab_size for token in guess.tokens)
        _promise(inside, "keeps to the vocabulary", guess.tokens, f"0 .. {self.vocab_size - 1}")
        tree = Tree.chain(count) if guess.parents is None else Tree(tuple(guess.parents))
        _promise(len(tree) == count, "gives every token a parent", len(tree), count)
        deepest, most = f"{tree.height} in a row", f"{turn.height} at most, by turn.height"
        _promise(tree.height <= turn.height, "keeps to its depth", deepest, most)
        chain = tree.is_chain or not turn.is_chain
        _promise(chain, "gives a chain where one is wanted", guess.parents, "no branches")
        if guess.values is not None:
            fine = len(guess.values) == count and all(0 <= v <= 1 + 1e-9 for v in guess.values)
            _promise(fine, "gives each token a chance, if any", guess.values, f"{count} in 0 .. 1")
        if shared_noise:
            return
        fair = guess.drawn in (Drawn.POINT, Drawn.SAMPLED)
        _promise(fair, "draws with noise of its own, unpruned", guess.drawn, "point or sampled")
        if guess.drawn is Drawn.SAMPLED and count:
            probs = np.asarray(guess.probs, dtype=np.float64)
            shape = (count, self.vocab_size)
            _promise(
                probs.shape == shape, "gives the distribution of each token", probs.shape, shape
            )
            is_law = (probs >= 0).all() and (abs(probs.sum(axis=1) - 1) < 1e-3).all()
            _promise(bool(is_law), "gives distributions that sum to 1", probs.sum(axis=1), 1)
            token_probs = probs[range(count), guess.tokens]
            _promise(
                bool((token_probs > 0).all()),
                "draws what its distribution allows",
                token_probs,
                "above 0",
            )


@dataclass
class Doubting(Witness):
    """A witness that gives each guess a random acceptance chance, so the engine may drop any."""

    chances: Random = field(default_factory=lambda: Random(0))

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        return [
            replace(guess, values=[self.chances.random() for _ in guess.tokens])
            for guess in super().propose(state, turns, shared_noise=shared_noise)
        ]


def check_drafter(
    make_drafter: Callable[[], Drafter],
    target: Any = None,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
) -> None:
    """Run all checks below on a drafter; the default target is a random table of 7 tokens."""
    given: Any = make_drafter
    if not callable(given):
        cure = f"Pass a function that makes one: lambda: {type(given).__name__}(...)."
        wrong = "A fresh drafter is needed for every check."
        raise InputError(explain(wrong, f"a {type(given).__name__}", cure))
    drafter = make_drafter()
    check_verbs(drafter)
    _promise(hasattr(drafter, "name"), "has a `name`", type(drafter).__name__, "a text")
    model = wrap(TableModel.random(vocab_size=7, order=2, seed=0) if target is None else target)
    size = model.vocab_size
    texts = prompts or [[1 % size], [2 % size, 3 % size, 1 % size, 2 % size, 3 % size], [3 % size]]
    court = _Court(make_drafter, model, [list(text) for text in texts])
    court.changes_no_text()
    court.bears_that_guesses_are_dropped()
    court.survives_the_end_of_the_context()
    court.repeats_itself()
    court.keeps_requests_apart()
    court.keeps_owners_apart()
    court.draws_what_it_claims()


@dataclass(frozen=True)
class _Court:
    make: Callable[[], Drafter]
    target: Any
    prompts: list[list[int]]

    def changes_no_text(self) -> None:
        """Check that under `match` the text equals that of plain decoding.

        The runs cover chains, trees, several rounds, reused rows, and a budget of 0 at the end.
        """
        limits = [1, 9, 14][: len(self.prompts)] + [6] * (len(self.prompts) - 3)
        for temperature in (0.0, 0.9):
            sampling = Sampling(seed=3, temperature=temperature)
            how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": limits}
            how |= {"ignore_eos": True}
            plain = generate(self.target, self.prompts, drafter=None, **how)
            for tree, length in ((None, 1), (None, 5), (8, 4), (TREE, 2)):
                how |= {"tree": tree, "draft_length": length, "batch_size": 2}
                drafted, _ = self._run(**how)
                texts = [[answer.tokens for answer in answers] for answers in (drafted, plain)]
                _promise(texts[0] == texts[1], "changes no text under match", *texts)

    def bears_that_guesses_are_dropped(self) -> None:
        """Check that the text stays the same when the engine drops guesses that do not pay
        (draft_length="auto").

        It may drop the end of a chain, or any tree node with its descendants.  The text must
        still equal that of plain decoding.
        """
        prompts = [self.prompts[index % len(self.prompts)] for index in range(NUM_STEERED)]
        samplings = [Sampling(seed=seed, temperature=seed % 2) for seed in range(NUM_STEERED)]
        how: dict[str, Any] = {"sampling": samplings, "max_new_tokens": 12}
        plain = generate(self.target, prompts, drafter=None, ignore_eos=True, **how)
        how |= {"draft_length": "auto", "batch_size": 4}
        for tree in (None, 8):
            drafted, _ = self._run(prompts, Doubting, tree=tree, **how)
            texts = [[answer.tokens for answer in answers] for answers in (drafted, plain)]
            _promise(texts[0] == texts[1], "bears that guesses are dropped", *texts)

    def survives_the_end_of_the_context(self) -> None:
        """Check that texts which reach the end of the context end without an error."""
        limit = self.target.max_context
        if limit is not None and limit <= 512:
            sampling = Sampling(seed=3, temperature=0.0)
            answers, _ = self._run(max_new_tokens=limit, sampling=sampling)
            reasons = [answer.finish_reason for answer in answers]
            fine = set(reasons) <= {"context", "stop"}
            _promise(fine, "goes on to the end of the context", reasons, "context")

    def repeats_itself(self) -> None:
        """Check that repeated requests get equal guesses from a fresh state."""
        for rule, length in (("match", 5), ("ratio", 5), ("match", "auto"), ("ratio", "auto")):
            how: dict[str, Any] = {"rule": rule, "draft_length": length}
            both = [self._run(sampling=Sampling(seed=5), **how)[1] for _ in range(2)]
            answers = [[record.answer for record in seen] for seen in both]
            _promise(answers[0] == answers[1], "repeats itself", *answers)

    def keeps_requests_apart(self) -> None:
        """Check that under a rule that needs the draft's law, a guess depends only on its own
        request.

        Another request with the same seed has seen the same coins.
        """
        samplings = [Sampling(seed=7) for _ in self.prompts]
        alone: dict[Any, Any] = {}
        for prompt in self.prompts:
            _, seen = self._run([prompt], rule="ratio", sampling=Sampling(seed=7))
            alone |= {record.text: record.answer for record in seen}
        for batch_size in (1, len(self.prompts)):
            _, seen = self._run(rule="ratio", sampling=samplings, batch_size=batch_size)
            for record in seen:
                if record.text in alone:
                    _promise(
                        record.answer == alone[record.text],
                        "keeps requests apart under a rule that needs the draft's distribution",
                        record.answer,
                        alone[record.text],
                    )

    def keeps_owners_apart(self) -> None:
        """Check that nothing learned from one owner's requests is used for another, who could
        notice it by how fast answers come."""
        with timed_by(lambda: 0.0):
            for prompt in self.prompts:
                alone, after = self._guesses_for("B", prompt), self._guesses_for("AB", prompt)
                promise = "guesses nothing from another owner's texts (`assign` tells of owners)"
                _promise(alone == after, promise, after, alone)

    def _guesses_for(self, owners: str, prompt: list[int]) -> list[Any]:
        """The guesses for the last of several owners who ask the same, one after the other."""
        witness = Witness(self.make(), self.target.vocab_size)
        engine = Engine(
            self.target,
            drafter=witness,
            draft_length=DRAFT_LENGTH,
            rule=Match(),
            num_rows=1,
            executor_of=executor_of,
        )
        for owner in owners:
            witness.seen.clear()
            sampling = Sampling(seed=9, temperature=0.9)
            options = AnswerOptions(sampling, max_new_tokens=12, owner=owner)
            engine.submit(make_request(self.target, prompt, options))
            while engine.busy:
                engine.step()
        return [record.answer for record in witness.seen]

    def draws_what_it_claims(self) -> None:
        """Check that the first tokens for 300 seeds follow the claimed law, and are independent of
        the target's noise."""
        samplings = [Sampling(seed=seed) for seed in range(NUM_SEEDS)]
        prompts = [self.prompts[0]] * NUM_SEEDS
        how: dict[str, Any] = {"sampling": samplings, "max_new_tokens": 2, "batch_size": 50}
        _, seen = self._run(prompts, rule="ratio", **how)
        first = [record for record in seen if record.turn.position == 0 and record.guess.tokens]
        points = {record.answer for record in first if record.guess.drawn is Drawn.POINT}
        _promise(
            len(points) <= 1, "guesses by the text alone if not by a distribution", points, "one"
        )
        sampled = [record for record in first if record.guess.drawn is Drawn.SAMPLED]
        if not sampled:
            return
        laws = np.stack([np.asarray(record.guess.probs)[0] for record in sampled])
        tokens = np.array([record.guess.tokens[0] for record in sampled])
        chances = laws.sum(axis=0)  # (V,): expected count of each token
        spread = np.sqrt((laws * (1 - laws)).sum(axis=0))
        often = chances > 5
        counts = np.bincount(tokens, minlength=laws.shape[1])
        sigmas = abs(counts - chances)[often] / np.maximum(spread[often], 1e-9)
        is_certain = spread[often] < 1e-9
        worst = float(np.where(is_certain, 0.0, sigmas).max(initial=0.0))
        _promise(
            worst < MOST_SIGMAS, "draws from the distribution it claims", f"{worst:.1f} sigmas", "5"
        )
        key = seed_key(XP, [record.turn.seed for record in sampled], None)
        targets = race(XP, laws, key, np.zeros(len(sampled), dtype=np.int64))
        agreed = laws[range(len(sampled)), targets]
        spread_agreed = max(float(np.sqrt((agreed * (1 - agreed)).sum())), 1e-9)
        excess = float((tokens == targets).sum() - agreed.sum()) / spread_agreed
        fair = excess < MOST_SIGMAS or spread_agreed == 1e-9
        _promise(fair, "draws with noise of its own", f"{excess:.1f} sigmas too often", "5")

    def _run(
        self,
        prompts: Sequence[Sequence[int]] | None = None,
        kind: type[Witness] = Witness,
        **how: Any,
    ) -> tuple[list[Any], list[Seen]]:
        """Generate with a witness; returns the answers, and all guesses in order."""
        how = {"max_new_tokens": 8, "ignore_eos": True, "draft_length": DRAFT_LENGTH} | how
        with timed_by(ErraticClock(0)), warnings.catch_warnings():
            # A failure that the engine warns of is raised below.
            warnings.filterwarnings("ignore", f"(?s).*{re.escape(HARMLESS)}", RuntimeWarning)
            witness = kind(self.make(), self.target.vocab_size)
            answers = generate(self.target, list(prompts or self.prompts), drafter=witness, **how)
        if witness.broken is not None:
            raise witness.broken
        notes = [note for answer in answers for note in answer.stats.notes]
        unasked = list(dict.fromkeys(note for note in notes if "cannot score trees" not in note))
        _promise(not unasked, "does not fail", "; ".join(unasked), "no notes")
        return answers, witness.seen


def _promise(kept: bool, what: str, received: object, expected: object) -> None:
    if not kept:
        raise BrokenPromise(explain(f"A drafter {what}.", received, f"Wanted: {expected}."))
