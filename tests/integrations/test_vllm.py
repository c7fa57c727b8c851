"""Our proposer under vLLM's contract: called as its runner calls a custom class, with the inputs of
its own n-gram tests, and guess for guess what our engine would have been given."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters.base import Drafter, Guess, Turn
from forerun.integrations.vllm import Proposer

VOCAB_SIZE = 12
MAX_MODEL_LEN = 256


def config(
    k: int = 4, *, max_model_len: int = MAX_MODEL_LEN, max_num_seqs: int = 8, **options: Any
) -> Any:
    """The parts of a `VllmConfig` that a proposer may read."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        model_config=SimpleNamespace(max_model_len=max_model_len, model="org/model"),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        additional_config={"forerun": options} if options else {},
    )


def called(
    proposer: Proposer, texts: Sequence[Sequence[int]], sampled: Sequence[Sequence[int]]
) -> list[list[int]]:
    """As vLLM's `propose_draft_token_ids` calls it: its whole buffers, longer than the batch."""
    tokens = np.full((len(texts) + 2, proposer.max_model_len), -1, dtype=np.int32)
    lengths = np.zeros(len(texts) + 2, dtype=np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
        lengths[row] = len(text)
    guesses = proposer.propose(list(sampled), lengths, tokens, slot_mappings=None)
    assert all(type(token) is int for guess in guesses for token in guess)
    return guesses


class Spy:
    """A drafter that writes down each text it is asked about and what it guesses there, and before
    each round the texts that have ended."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name = inner.name
        self.texts: dict[int, list[int]] = {}
        self.rounds: list[list[tuple[int, list[int], int, list[int]]]] = []
        self.ended: dict[int, list[tuple[int, list[int]]]] = {}  # round -> rows and texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        self.texts[row] = list(tokens)
        self.inner.enter(state, row, tokens, num_prompt)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        guesses = self.inner.propose(state, turns, shared_noise=shared_noise)
        self.rounds.append(
            [
                (turn.row, list(self.texts[turn.row]), turn.budget, guess.tokens)
                for turn, guess in zip(turns, guesses, strict=True)
            ]
        )
        return guesses

    def observe(self, state: Any, outcomes: Any) -> None:
        for outcome in outcomes:
            self.texts[outcome.row] += outcome.tokens
        self.inner.observe(state, outcomes)

    def release(self, state: Any, row: int) -> None:
        self.inner.release(state, row)
        self.ended.setdefault(len(self.rounds), []).append((row, self.texts.pop(row)))


def loops(tokens: Sequence[int]) -> Any:
    """The law of a model that mostly repeats what came four tokens ago, and sometimes does not."""
    law = np.full(VOCAB_SIZE, 0.15 / VOCAB_SIZE)
    law[tokens[-4] if len(tokens) >= 4 else 3] += 0.85
    return law


def first_guess(drafter: Drafter, text: list[int], k: int) -> list[int]:
    """What our engine is given after a prompt."""
    spy, vocab_size = Spy(drafter), max([*text, 1]) + 1
    target = fr.models.FunctionModel(lambda _: np.full(vocab_size, 1 / vocab_size))
    fr.generate(target, text, drafter=spy, draft_length=k, max_new_tokens=k + 1)
    return spy.rounds[0][0][3]


# The texts, n-gram sizes and lengths of vLLM's tests/v1/spec_decode/test_ngram.py.
NGRAM_INPUTS = [
    ([1, 2, 3, 4, 5], 2, 2, 2),
    ([1, 2, 3, 4, 1, 2, 3], 4, 4, 2),
    ([1, 2, 3, 4, 1, 2, 3], 3, 4, 2),
    ([2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4], 3, 4, 2),
    ([3, 4, 5, 2, 3, 4, 1, 2, 3, 4], 2, 4, 2),
    ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, 3, 2),
    ([1, 2, 3, 4, 1, 2, 3, 5, 6], 2, 2, 2),
    ([1, 2, 3, 4, 1, 2, 3], 2, 2, 3),
    ([1, 2, 3, 4, 1, 2, 3], 1, 1, 3),
    ([1, 3, 6, 2, 3, 4, 1, 2, 3], 2, 2, 3),
    ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 1, 2),
]


@pytest.mark.parametrize(("text", "min_n", "max_n", "k"), NGRAM_INPUTS)
def test_guesses_for_vllm_s_own_inputs_are_our_engine_s(
    text: list[int], min_n: int, max_n: int, k: int
) -> None:
    sizes = {"min_n": min_n, "max_n": max_n}
    proposer = Proposer(config(k, drafter="ngram", ngram=sizes))
    expected = first_guess(fr.drafters.NGram(**sizes), text, k)
    assert called(proposer, [text], [[0]]) == [expected]
    suffix = Proposer(config(k, drafter="suffix"))
    assert called(suffix, [text], [[0]]) == [first_guess(fr.drafters.Suffix(), text, k)]


def test_vllm_s_batches() -> None:
    """An empty text, padding, and a row in the middle that is still reading its prompt."""
    options = {"drafter": "ngram", "ngram": {"min_n": 2, "max_n": 2}}
    assert called(Proposer(config(2, **options)), [[]], [[0]]) == [[]]
    padded = called(Proposer(config(2, **options)), [[1, 2, 3, 1, 2], [4, 5, 6]], [[0], [1]])
    assert padded == [[3, 1], []]
    texts = [[1, 2, 3, 1, 2], [4, 5, 4, 5], [7, 8, 9, 7, 8]]
    assert called(Proposer(config(2, **options)), texts, [[2], [], [8]]) == [[3, 1], [], [9, 7]]


@pytest.mark.parametrize(
    ("drafter_name", "rule", "num_requests"),
    [
        ("ngram", "match", 12),
        ("suffix", "match", 12),
        ("suffix+ngram", "match", 1),  # what it learns depends on the order of rows, shuffled here
        ("ngram", "ratio", 12),
        ("suffix", "ratio", 12),
        ("suffix+ngram", "ratio", 12),
    ],
)
def test_whole_runs_guess_for_guess(drafter_name: str, rule: str, num_requests: int) -> None:
    """Requests through an engine of three rows.  Its texts are replayed as vLLM would show
    them, in rows that are shuffled at every step.  Under `match` memories are shared.  vLLM shows
    the last tokens of a request before it takes it out of the batch."""
    parts = {"ngram": fr.drafters.NGram(), "suffix": fr.drafters.Suffix()}
    names = drafter_name.split("+")
    drafter: Any = parts[names[0]]
    if len(names) > 1:
        drafter = fr.drafters.Mixed(*(parts[name] for name in names), clock=lambda: 0.0)
    spy, generator = Spy(drafter), random.Random(5)
    prompts = [[generator.randrange(VOCAB_SIZE) for _ in range(6)] for _ in range(num_requests)]
    fr.generate(
        fr.models.FunctionModel(loops),
        prompts,
        drafter=spy,
        draft_length=4,
        rule=rule,
        sampling=[fr.Sampling(temperature=1.0, seed=seed) for seed in range(num_requests)],
        max_new_tokens=[generator.randint(12, 40) + 200 // num_requests for _ in prompts],
        batch_size=3,
    )
    proposer = Proposer(config(4, drafter=drafter_name, remember=rule == "match"))
    before: dict[int, list[int]] = {}
    num_compared = num_guessed = 0
    for number, turns in enumerate(spy.rounds):
        if ended := spy.ended.get(number):
            last = {row: text for row, text in ended if row in before}
            staying = [text for row, text in before.items() if row not in last]
            new = [text[len(before[row]) :] for row, text in last.items()]
            called(proposer, [*staying, *last.values()], [*([[]] * len(staying)), *new])
            before = {row: text for row, text in before.items() if row not in last}
        turns = generator.sample(turns, len(turns))
        # One that needs no guess any more is not asked, and stays in vLLM's batch until it ends.
        resting = [before[row] for row in before if row not in {turn[0] for turn in turns}]
        texts = [text for _, text, _, _ in turns]
        sampled = []
        for row, text, _, _ in turns:
            sampled.append(text[len(before[row]) :] if row in before else text[-1:])
            before[row] = text
        every = called(proposer, [*texts, *resting], [*sampled, *([] for _ in resting)])
        guesses = every[: len(turns)]
        for (_, _, budget, expected), guess in zip(turns, guesses, strict=True):
            if budget == 4:  # near its end a request is asked for fewer
                assert guess == expected
                num_compared += 1
                num_guessed += bool(guess)
    assert num_compared > 60
    assert num_guessed > 20


def test_rows_are_recognised_wherever_they_are() -> None:
    """A drafter that is told of a text once goes on with it; one that were told anew every time
    would be right too, so this looks at what was entered."""
    proposer = Proposer(config(drafter="ngram"))
    entered: list[list[int]] = []
    inner = proposer.drafter

    class Told:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
            entered.append(list(tokens))
            inner.enter(state, row, tokens, num_prompt)

    proposer.drafter = Told()  # type: ignore[assignment]
    a, b = [1, 2, 3, 1, 2], [5, 6, 7, 5, 6]
    assert called(proposer, [a, b], [[2], [6]]) == [[3, 1, 2, 3], [7, 5, 6, 7]]
    assert called(proposer, [[*b, 7], [*a, 3]], [[7], [3]]) == [[5, 6, 7, 5], [1, 2, 3, 1]]
    assert entered == [a, b]
    called(proposer, [[*a, 3, 9]], [[9]])  # the other one has left
    called(proposer, [[*a, 3, 9], [*b, 7, 5]], [[], [5]])  # and comes back
    assert entered == [a, b, [*b, 7, 5]]


def test_memory_is_bounded() -> None:
    proposer = Proposer(config(max_num_seqs=2))
    for start in range(500):
        text = [start % 7, 1, 2, start % 5, 1, 2]
        called(proposer, [text, [*text, 3]], [[2], [3]])
    assert len(proposer._free) == 0
    assert len(proposer._requests._last) == 2
    assert called(proposer, [[1, 2, 1, 2]] * 3, [[2]] * 3)[2] == []  # more than it was told of
    called(proposer, [], [])
    assert sorted(proposer._free) == [0, 1]


def test_no_guess_goes_past_the_context() -> None:
    text = [1, 2, 3] * 6
    for room, expected in ((6, 4), (3, 2), (1, 0), (0, 0)):
        proposer = Proposer(config(max_model_len=len(text) + room, drafter="ngram"))
        assert len(called(proposer, [text], [[3]])[0]) == expected


def test_nothing_is_loaded_and_nothing_of_other_requests_is_guessed_by_default() -> None:
    proposer = Proposer(config())
    proposer.load_model(object())
    answer = [4, 8, 1, 9, 2, 7, 5, 3]
    for options, expected in (({}, []), ({"remember": True}, [1, 9, 2])):
        proposer = Proposer(config(drafter="suffix", **options))
        called(proposer, [[0, 0, *answer[:1]]], [answer[:1]])
        called(proposer, [[0, 0, *answer]], [answer[1:]])
        called(proposer, [[6, 6, 4]], [[4]])
        assert called(proposer, [[6, 6, 4, 8]], [[8]]) == [expected]


def test_bad_options_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="texts and nothing else"):
        Proposer(config(drafter="heads"))
    with pytest.raises(InputError, match="not known here"):
        Proposer(config(drafters="ngram"))
    with pytest.raises(InputError, match="Unknown options of ngram"):
        Proposer(config(drafter="ngram", ngram={"size": 3}))
