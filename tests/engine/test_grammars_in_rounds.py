"""Grammars through the engine: exact at every slot of a draft, and forced tokens are free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from automata import Sums
from drafting import Branching, Quiet, Random, Saying, recalling
from reciting import Reciter, byte_tokenizer

import forerun as fr
from forerun import InputError, Sampling, Tree
from forerun.drafters import Forced, Guess, Model, NGram, Suffix
from forerun.generation import intake
from forerun.grammars import Cursor
from forerun.models import FunctionModel, TableModel

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "animal": {"enum": ["quick fox", "lazy dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "animal", "age"],
    "additionalProperties": False,
}
COMPACT = fr.grammars.json_schema(SCHEMA, separators=(",", ":"))
LOOSE = fr.grammars.json_schema(SCHEMA)
TEXT = ' {"name": "Rob", "animal": "lazy dog", "age": 12}'
SIZE = 352  # of the vocabulary: wider than the tokenizer


class Writer(FunctionModel):
    """Half of it follows a script, half anything; ids past the tokenizer's are likeliest of all."""

    def __init__(self, text: str = TEXT, doubt: float = 0.5) -> None:
        self.inner = Reciter(text, doubt)
        self.tokenizer = byte_tokenizer()
        super().__init__(self._law, vocab_size=SIZE)
        self.name = "writer"

    def _law(self, ids: np.ndarray[Any, Any]) -> Any:
        law = np.full(SIZE, 0.02)
        law[: self.inner.size] = self.inner._law(ids % self.inner.size)
        return law / law.sum()


WRITER, OTHER = Writer(), Writer(TEXT.replace("lazy dog", "quick fox").replace("Rob", "Eve"), 0.7)
PROMPTS = [[65], [70, 71], [4, 5, 6]]


def flat(answers: Any) -> list[fr.Generation]:
    return [each for one in answers for each in (one if isinstance(one, list) else [one])]


def shown(answers: Any) -> list[Any]:
    return [(each.tokens, each.text, each.finish_reason) for each in flat(answers)]


def is_valid(answer: fr.Generation) -> bool:
    """JSON of the schema, or the beginning of one where the limit cut it."""
    if answer.finish_reason != "stop":
        return answer.finish_reason == "length"
    found = json.loads(answer.text or "")
    return set(found) == set(SCHEMA["properties"])  # type: ignore[call-overload]


class Watched(Cursor):
    """Remembers what it was asked, and what it said."""

    asked: list[tuple[list[int], Any]]

    def __call__(self, output: Sequence[int]) -> Any:
        mask = super().__call__(output)
        self.asked.append((list(output), np.array(mask)))
        return mask


@pytest.mark.parametrize("tree", [None, 9], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", ["match", "siblings"])
def test_the_mask_at_every_slot_is_that_of_its_path(
    monkeypatch: pytest.MonkeyPatch, tree: Any, rule: str
) -> None:
    monkeypatch.setattr(Watched, "asked", [], raising=False)
    monkeypatch.setattr(intake, "Cursor", Watched)
    how: dict[str, Any] = {
        "sampling": Sampling(1.5, seed=3, grammar=LOOSE), "max_new_tokens": 40, "draft_length": 4,
    }  # fmt: skip
    plain = fr.generate(WRITER, PROMPTS, drafter=None, **how)
    assert all(map(is_valid, plain))
    if tree is not None:
        tree = Tree.of_branching((2, 2, 1)) if rule == "siblings" else tree
    texts = [answer.prompt_tokens + answer.tokens for answer in plain]
    drafters = [Model(OTHER)] if rule == "siblings" else [Model(OTHER), Branching(texts, SIZE)]
    if tree is None:
        drafters.append(Random(SIZE))
    Watched.asked.clear()
    for drafter in drafters:
        found = fr.generate(WRITER, PROMPTS, drafter=drafter, tree=tree, rule=rule, **how)
        assert all(map(is_valid, found))
    committed = {tuple(answer.tokens[:end]) for answer in plain for end in range(41)}
    masks: dict[tuple[int, ...], Any] = {}
    for output, mask in Watched.asked:
        if tuple(output) not in masks:
            fresh = LOOSE.matcher(byte_tokenizer(), SIZE, (WRITER.inner.end,))
            assert all(fresh.accept(token) for token in output)
            masks[tuple(output)] = fresh.mask()
        np.testing.assert_array_equal(mask, masks[tuple(output)])
    assert len(set(masks) - committed) >= 10, "slots off the text were asked about"


DRAFTERS = {
    "ngram": NGram(min_n=1),
    "suffix": Suffix(),
    "model": Model(OTHER),
    "equal": Model(WRITER),
    "random": Random(SIZE),
    "forced": Forced(),
}


@pytest.mark.parametrize(
    "temperature", [*(pytest.param(few, marks=pytest.mark.slow) for few in (0.0, 0.7)), 1.5]
)
@pytest.mark.parametrize(
    "grammar",
    [pytest.param(COMPACT, marks=pytest.mark.slow, id="compact"), pytest.param(LOOSE, id="loose")],
)
def test_speculation_cannot_be_seen(grammar: Any, temperature: float) -> None:
    """Also in a batch with requests that have another grammar, or none."""
    samplings = [
        Sampling(temperature=temperature, seed=5, grammar=grammar, n=2),
        Sampling(temperature=temperature, seed=5, grammar=fr.grammars.regex("(dog|fox)+[0-9]{3}")),
        Sampling(temperature=temperature, seed=6),
    ]
    how: dict[str, Any] = {"sampling": samplings, "max_new_tokens": 40, "logprobs": 1}
    plain = fr.generate(WRITER, PROMPTS, drafter=None, **how)
    assert all(map(is_valid, plain[0]))
    known = recalling(*flat(plain), mistakes=0.3, vocab_size=SIZE)
    for name, drafter in (DRAFTERS | {"known": known}).items():
        for options in ({"draft_length": 5}, {"tree": 8, "draft_length": 3}):
            found = fr.generate(WRITER, PROMPTS, drafter=drafter, batch_size=3, **options, **how)
            assert shown(found) == shown(plain), (name, options)
            assert all(not answer.stats.notes for answer in flat(found))
            for one, other in zip(flat(found), flat(plain), strict=True):
                np.testing.assert_allclose(
                    [each.logprob for each in one.logprobs or ()],
                    [each.logprob for each in other.logprobs or ()],
                    atol=1e-9,
                )


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_valid_under_rules_that_divide_by_the_drafts_law(rule: str) -> None:
    for seed in range(3):
        sampling = Sampling(seed=seed, grammar=COMPACT)
        for drafter in (Model(OTHER), NGram(min_n=1), Forced()):
            found = fr.generate(
                WRITER, PROMPTS, drafter=drafter, rule=rule, sampling=sampling, max_new_tokens=60
            )
            assert all(map(is_valid, found))
            assert all(not answer.stats.notes for answer in found)


def test_forced_tokens_come_several_to_a_round() -> None:
    """By counting: a drafter that knows nothing needs fewer rounds than there are tokens."""
    how: dict[str, Any] = {
        "sampling": Sampling(seed=2, grammar=COMPACT), "max_new_tokens": 60, "draft_length": 8,
    }  # fmt: skip
    plain = fr.generate(WRITER, PROMPTS, drafter=None, **how)
    for drafter in (Forced(), Quiet(), Random(SIZE)):
        found = fr.generate(WRITER, PROMPTS, drafter=drafter, **how)
        assert shown(found) == shown(plain)
        assert all(answer.stats.tokens_per_round > 1.5 for answer in found)
    forced = fr.generate(WRITER, PROMPTS, drafter=Forced(), **how)
    assert all(answer.stats.acceptance_rate == 1 for answer in forced), "no choice, no refusal"


def test_a_guess_that_goes_on_after_forced_tokens_is_taken() -> None:
    plain = fr.generate(
        WRITER, PROMPTS, drafter=None, sampling=Sampling(seed=2, grammar=COMPACT), max_new_tokens=60
    )
    rounds = []
    for drafter in (Forced(), recalling(*plain, vocab_size=SIZE)):
        found = fr.generate(
            WRITER, PROMPTS, drafter=drafter, sampling=Sampling(seed=2, grammar=COMPACT),
            max_new_tokens=60, draft_length=8,
        )  # fmt: skip
        rounds.append(sum(answer.stats.rounds for answer in found))
    tokens = [len(answer.tokens) for answer in plain]
    assert rounds[1] == sum(-(-count // 9) for count in tokens)
    assert rounds[0] > rounds[1]


def test_forced_tokens_are_not_the_drafters_own() -> None:
    """The drafter is told that nothing was scored where its guess was put aside."""
    outcomes: list[Any] = []

    class Listening(Saying):
        def observe(self, state: Any, found: Any) -> None:
            outcomes.extend(found)

    drafter = Listening(lambda turn: Guess([9] * turn.height))
    how: dict[str, Any] = {"sampling": Sampling(seed=2, grammar=COMPACT), "max_new_tokens": 30}
    found = fr.generate(WRITER, PROMPTS, drafter=drafter, draft_length=3, **how)
    assert all(answer.stats.accepted > 3 for answer in found)
    assert all(outcome.num_accepted == len(outcome.path) == 0 for outcome in outcomes)
    assert {outcome.num_scored for outcome in outcomes} >= {0, 3}
    assert len(outcomes) == sum(answer.stats.rounds for answer in found)


TABLE, DRAFT = (
    TableModel.random(vocab_size=5, order=2, seed=3),
    TableModel.random(vocab_size=5, order=1, seed=4),
)


@pytest.mark.parametrize("lies", [False, True])
def test_a_grammar_of_ones_own(lies: bool) -> None:
    """Without a tokenizer; what it wrongly calls forced costs tokens and changes no text."""
    grammar = Sums(((1, 2), (3,), (0, 4), (1, 2, 4), (2,), (1,), (0, 1, 2, 3, 4)), lies)
    how: dict[str, Any] = {
        "sampling": [Sampling(seed=seed, grammar=grammar) for seed in (1, 2, 3)],
        "max_new_tokens": 25, "stop_tokens": [0],
    }  # fmt: skip
    plain = fr.generate(TABLE, PROMPTS_OF_FIVE, drafter=None, **how)
    for drafter in (Model(DRAFT), NGram(min_n=1), Forced(), Random(5)):
        for options in ({"draft_length": 3}, {"tree": 6, "draft_length": 3}, {}):
            found = fr.generate(TABLE, PROMPTS_OF_FIVE, drafter=drafter, **options, **how)
            assert shown(found) == shown(plain)
            assert all(not answer.stats.notes for answer in found)
    found = fr.generate(TABLE, PROMPTS_OF_FIVE, drafter=Forced(), draft_length=4, **how)
    drafted, accepted = (
        sum(getattr(answer.stats, name) for answer in found) for name in ("drafted", "accepted")
    )
    assert accepted > 0
    assert (accepted < drafted) == lies


PROMPTS_OF_FIVE = [[1, 2], [3], [4, 4, 1]]


def test_the_end_of_a_grammar_ends_the_text() -> None:
    """Even where ending tokens were to be ignored: nothing could follow."""
    how: dict[str, Any] = {"sampling": Sampling(seed=1, grammar=fr.grammars.regex("fox|dog"))}
    for ignore_eos in (False, True):
        for drafter in (None, Random(SIZE), Model(OTHER)):
            found = fr.generate(WRITER, [65], drafter=drafter, ignore_eos=ignore_eos, **how)
            assert found.text in ("fox", "dog")
            assert found.finish_reason == "stop"
            assert found.tokens[-1] == WRITER.inner.end


@pytest.mark.parametrize("drafter", [None, Forced(), Random(SIZE), Model(OTHER)])
def test_a_grammar_that_leads_nowhere_is_an_error_of_its_request(drafter: Any) -> None:
    grammar = fr.grammars.lark('start: "dog" NONE\nNONE: /[a-c]/ & /[x-z]/\n')
    samplings = [Sampling(seed=1, grammar=grammar), Sampling(seed=1, grammar=COMPACT)]
    how: dict[str, Any] = {"sampling": samplings, "max_new_tokens": 60, "errors": "return"}
    found = fr.generate(WRITER, PROMPTS[:2], drafter=drafter, **how)
    assert found[0].finish_reason == "error"
    assert found[0].text == "dog"
    place = len(found[0].tokens)
    assert found[0].error is not None
    assert found[0].error.startswith(f"at output position {place}: the grammar allows no token")
    assert is_valid(found[1])
    assert found[1].stats.notes == []


@pytest.mark.parametrize(
    ("grammar", "what"),
    [
        (fr.grammars.regex(""), "an empty text only"),
        (fr.grammars.lark('start: ""'), "an empty text only"),
        (fr.grammars.regex(r"[^\s\S]"), "no text"),
        (fr.grammars.lark("start: NONE\nNONE: /[a-c]/ & /[x-z]/"), "no text"),
    ],
)
def test_a_grammar_that_allows_nothing_is_refused(grammar: Any, what: str) -> None:
    with pytest.raises(InputError, match=rf"The grammar allows {what}. Received '"):
        fr.generate(WRITER, [65], sampling=Sampling(grammar=grammar))


@pytest.mark.parametrize("answer", [[], [False] * SIZE, ()])
def test_a_function_that_allows_nothing_ends_its_request_with_an_error(answer: Any) -> None:
    sampling = Sampling(grammar=lambda tokens: answer if tokens else [65])
    with pytest.raises(fr.GenerationError, match="output position 1: the grammar allows no token"):
        fr.generate(WRITER, [65], sampling=sampling)


def test_what_a_function_receives() -> None:
    """The answer without the prompt, tokens given to `resume` and drafted ones included."""
    seen: list[Any] = []
    sampling = Sampling(grammar=lambda tokens: seen.append(tokens) or range(SIZE), seed=1)
    how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 6, "ignore_eos": True}
    answer = fr.generate(WRITER, [65, 66], drafter=None, **how)
    assert seen == [answer.tokens[:place] for place in range(6)]
    seen.clear()
    drafter = Model(WRITER)  # whose guesses are all right
    fr.generate(WRITER, [65, 66], drafter=drafter, draft_length=2, resume=answer.tokens[:2], **how)
    assert {tuple(tokens) for tokens in seen} == {tuple(answer.tokens[:n]) for n in range(2, 6)}


def test_options_that_leave_nothing_of_a_grammar() -> None:
    sampling = Sampling(seed=1, grammar=fr.grammars.regex("fox|dog"), min_tokens=20)
    found = fr.generate(WRITER, [65], drafter=None, sampling=sampling, errors="return")
    assert found.error.startswith(f"at output position {len(found.tokens)}: no token is possible")
    assert found.text in ("fox", "dog")


def test_a_model_without_a_tokenizer_is_refused() -> None:
    sampling = Sampling(grammar=COMPACT)
    with pytest.raises(InputError, match="A JSON schema needs a tokenizer"):
        fr.generate(TABLE, [1], drafter=None, sampling=sampling, stop_tokens=[0])


def test_samplings_may_be_used_again() -> None:
    """The caller's options keep the description, and every request has a matcher of its own."""
    sampling = Sampling(seed=4, grammar=COMPACT)
    first = fr.generate(WRITER, PROMPTS, drafter=None, sampling=sampling, max_new_tokens=50)
    again = fr.generate(WRITER, PROMPTS, drafter=NGram(), sampling=sampling, max_new_tokens=50)
    assert shown(first) == shown(again)
    assert sampling.grammar is COMPACT
