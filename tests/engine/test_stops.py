"""Texts end exactly where plain decoding ends them, also in the middle of an accepted run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drafting import recalling
from reciting import END, TEXT, Reciter
from tiny_models import VOCAB_SIZE, Architecture

import forerun as fr
from forerun import Fate, Sampling
from forerun.drafters import Model, NGram
from forerun.engine.request import token_logprob
from forerun.engine.text import token_bytes, token_text
from forerun.models import TableModel

RECITER = Reciter(TEXT)
DOUBTFUL = Model(Reciter(TEXT, doubt=0.3))


def recite(**how: Any) -> fr.Generation:
    how = {"sampling": Sampling(seed=1), "max_new_tokens": 100, "stop_tokens": [RECITER.end]} | how
    answer: fr.Generation = fr.generate(RECITER, RECITER.prompt(), **{"drafter": None} | how)
    return answer


@pytest.mark.parametrize(
    "stop",
    [
        "dog",
        " answers",
        "swers 世",  # across words
        "界: 你",  # across tokens of several bytes each
        "🦊",
        "🎉🎉",
        "\u200d👧",  # inside what is shown as one character
        "é",
        ["no such text", "stop", "top"],
        [
            "caf",
            "fé, s",
            "naïve c",
        ],  # the one that is complete first, not the one that begins first
        "User: hello",
    ],
)
def test_stop_strings(stop: Any) -> None:
    """Left out of the text; found at the same token with and without speculation."""
    plain = recite(stop=stop)
    assert plain.finish_reason == "stop_string"
    strings = [stop] if isinstance(stop, str) else stop
    whole = recite().text
    assert whole is not None
    assert plain.text is not None
    assert whole.startswith(plain.text)
    assert any(whole[len(plain.text) :].startswith(string) for string in strings)
    assert not any(string in plain.text for string in strings)
    for drafter, draft_length in ((Model(RECITER), 7), (DOUBTFUL, 2), (DOUBTFUL, 7), (NGram(), 2)):
        found = recite(stop=stop, drafter=drafter, draft_length=draft_length)
        assert (found.text, found.tokens, found.finish_reason) == (
            plain.text,
            plain.tokens,
            "stop_string",
        )


def test_a_stop_in_the_middle_of_an_accepted_run() -> None:
    """All K drafts are accepted, most of them after the end: none of those may show anywhere."""
    plain = recite(stop=" answers", logprobs=1)
    drafter = Model(RECITER)
    found = recite(stop=" answers", logprobs=1, drafter=drafter, draft_length=30)
    assert found.stats.rounds == 1
    assert (found.stats.drafted, found.stats.accepted) == (30, len(found.tokens))
    assert found.stats.emitted == len(found.tokens) == len(plain.tokens) < 30
    assert len(found.fates) == len(found.logprobs or ()) == len(found.tokens)
    assert set(found.fates) == {Fate.ACCEPTED}


def test_an_ending_token_in_the_middle_of_an_accepted_run() -> None:
    ending = RECITER.script[8]
    plain = recite(stop_tokens=[ending])
    assert plain.tokens == RECITER.script[1:9]
    assert plain.finish_reason == "stop"
    found = recite(stop_tokens=[ending], drafter=Model(RECITER), draft_length=30)
    assert (found.tokens, found.text) == (plain.tokens, plain.text)
    assert found.stats.rounds == 1


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8])
def test_limits_cut_the_draft_before_it_is_made(limit: int) -> None:
    found = recite(max_new_tokens=limit, drafter=Model(RECITER), draft_length=4)
    assert found.tokens == RECITER.script[1 : limit + 1]
    assert found.finish_reason == "length"
    assert found.stats.drafted + found.stats.rounds == limit, "nothing was drafted in vain"


def test_the_context_is_a_limit_too() -> None:
    """Also in the middle of a round; and the last token of the context is still generated."""
    model = Architecture(
        "gpt2", "crop", {"n_embd": 32, "n_layer": 2, "n_head": 4, "max_position_embeddings": 16}
    )
    target = fr.wrap(model.build())
    assert target.max_context == 16
    prompt = [5, 9, 33]
    sampling = Sampling(seed=2)
    plain = fr.generate(target, prompt, drafter=None, sampling=sampling, max_new_tokens=40)
    assert plain.finish_reason == "context"
    assert len(plain.tokens) == 13
    for drafter in (Model(target), recalling(plain, mistakes=0.3, vocab_size=VOCAB_SIZE)):
        for draft_length in (1, 4, 7):
            found = fr.generate(
                target, [prompt, [*prompt, 1, 2]], drafter=drafter, draft_length=draft_length,
                sampling=sampling, max_new_tokens=40,
            )  # fmt: skip
            assert found[0].tokens == plain.tokens
            assert [each.finish_reason for each in found] == ["context"] * 2
            assert len(found[1].tokens) == 11
    exact = fr.generate(target, prompt, drafter=None, sampling=sampling, max_new_tokens=13)
    assert exact.finish_reason == "length"


def test_a_draft_across_the_end_of_the_text() -> None:
    """Drafters do not know about endings; what they guess after one is never kept."""
    target = TableModel.random(vocab_size=4, order=1, seed=0)
    for seed in range(20):
        how: dict[str, Any] = {"sampling": Sampling(seed=seed), "stop_tokens": [3]}
        plain = fr.generate(target, [0], drafter=None, **how)
        found = fr.generate(target, [0], drafter=Model(target), draft_length=9, **how)
        assert found.tokens == plain.tokens
        assert 3 not in found.tokens[:-1]


@pytest.mark.parametrize("min_tokens", [0, 5, 12, 30])
def test_min_tokens_holds_for_stop_strings_and_endings(min_tokens: int) -> None:
    how: dict[str, Any] = {"sampling": Sampling(seed=1, min_tokens=min_tokens), "stop": [" ", "o"]}
    plain = recite(**how)
    found = recite(drafter=DOUBTFUL, draft_length=5, **how)
    assert (found.tokens, found.text) == (plain.tokens, plain.text)
    assert len(plain.tokens) >= max(min_tokens, 1)
    assert plain.finish_reason == "stop_string"
    if min_tokens == 0:
        assert plain.text == ""
    banned = recite(sampling=Sampling(seed=1, min_tokens=90), max_new_tokens=95, errors="return")
    assert RECITER.end not in banned.tokens[:90]
    assert banned.finish_reason == "error", "this model knows no other way"


def test_ending_tokens_of_the_model() -> None:
    """Those of the generation config, as in transformers; the config's own where there are none."""
    model = Architecture("llama", "crop").build()
    sampling = Sampling(seed=4)
    free = fr.generate(model, [5, 9], drafter=None, sampling=sampling, max_new_tokens=20)
    assert free.finish_reason == "length"
    model.config.eos_token_id = free.tokens[8]
    model.generation_config.eos_token_id = None
    first = free.tokens.index(free.tokens[8])
    stopped = fr.generate(model, [5, 9], drafter=None, sampling=sampling, max_new_tokens=20)
    assert stopped.tokens == free.tokens[: first + 1]
    assert stopped.finish_reason == "stop"
    model.generation_config.eos_token_id = [free.tokens[3], VOCAB_SIZE + 7]
    first = free.tokens.index(free.tokens[3])
    stopped = fr.generate(model, [5, 9], drafter=Model(model), sampling=sampling, max_new_tokens=20)
    assert stopped.tokens == free.tokens[: first + 1]
    ignored = fr.generate(
        model, [5, 9], drafter=None, sampling=sampling, max_new_tokens=20, ignore_eos=True
    )
    assert ignored.tokens == free.tokens
    both = fr.generate(
        model,
        [5, 9],
        drafter=None,
        sampling=sampling,
        max_new_tokens=20,
        stop_tokens=[free.tokens[0]],
    )
    assert both.tokens == free.tokens[:1]


@pytest.mark.parametrize("whose", ["model", "sampling"])
def test_logprobs_are_of_the_model_or_of_what_was_sampled_from(whose: Any) -> None:
    """Along plain, accepted, corrected and cut tokens."""
    target = TableModel.random(vocab_size=6, order=2, seed=1)
    sampling = Sampling(seed=9, temperature=0.7, top_k=4, presence_penalty=0.4)
    fates = set()
    for drafter, rule in (
        (None, "match"), (Model(TableModel.random(6, 2, seed=2)), "match"), (NGram(), "ratio"),
        (Model(TableModel.random(6, 2, seed=2)), "ratio"), (Model(target), "block"),
    ):  # fmt: skip
        answer = fr.generate(
            target, [1, 2], drafter=drafter, rule=rule, draft_length=4, sampling=sampling,
            logprobs=3, logprobs_of=whose, max_new_tokens=30, stop_tokens=[5],
        )  # fmt: skip
        fates |= set(answer.fates)
        assert answer.logprobs is not None
        assert [each.token for each in answer.logprobs] == answer.tokens
        for place, reported in enumerate(answer.logprobs):
            output = answer.tokens[:place]
            scores = np.log(target.probs([1, 2, *output]))
            if whose == "sampling":
                scores[list(set(output))] -= 0.4
                scores[np.argsort(scores)[:2]] = -np.inf
                scores /= 0.7
            logs = scores - np.log(np.exp(scores).sum())
            assert dict(reported.top).get(reported.token, reported.logprob) == reported.logprob
            assert reported.logprob == pytest.approx(logs[reported.token], abs=1e-12)
            order = np.argsort(-logs)[:3]
            assert [token for token, _ in reported.top] == order.tolist()
            assert [value for _, value in reported.top] == pytest.approx(logs[order], abs=1e-12)
    assert fates == set(Fate) - {Fate.GIVEN}


def test_greedy_logprobs_are_not_all_zero() -> None:
    """Greedy decoding used to report 0.0 for every token; that is what "sampling" asks for."""
    target = TableModel.random(vocab_size=6, order=2, seed=1)
    own = fr.generate(target, [1], drafter=None, max_new_tokens=9, logprobs=2)
    assert own.logprobs is not None
    assert all(each.logprob < -0.01 for each in own.logprobs)
    assert [each.top[0] for each in own.logprobs] == [
        (each.token, each.logprob) for each in own.logprobs
    ]
    point = fr.generate(
        target, [1], drafter=None, max_new_tokens=9, logprobs=2, logprobs_of="sampling"
    )
    assert {(each.logprob, len(each.top)) for each in point.logprobs or ()} == {(0.0, 1)}


def test_ties_are_listed_in_the_order_of_ids() -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, -np.inf], np.float32)
    for count, ids in ((0, []), (1, [1]), (3, [1, 3, 2]), (9, [1, 3, 2, 4, 5, 0])):
        assert [token for token, _ in token_logprob(4, logits, count).top] == ids


def test_impossible_tokens_are_not_listed() -> None:
    target = TableModel.random(vocab_size=6, order=2, seed=1)
    answer = fr.generate(
        target,
        [1],
        drafter=None,
        sampling=Sampling(seed=1, top_k=2),
        logprobs=5,
        logprobs_of="sampling",
    )
    assert answer.logprobs is not None
    assert {len(each.top) for each in answer.logprobs} == {2}
    none = fr.generate(
        target, [1], drafter=None, sampling=Sampling(seed=1), logprobs=0, max_new_tokens=3
    )
    assert none.logprobs is not None
    assert {each.top for each in none.logprobs} == {()}


def test_stats_add_up() -> None:
    """Counts of a request agree with its fates and with each other."""
    target = TableModel.random(vocab_size=6, order=2, seed=1)
    drafter = Model(TableModel.random(6, 1, seed=2))
    for rule in ("match", "ratio", "block"):
        answer = fr.generate(
            target, [1], drafter=drafter, rule=rule, draft_length=4, sampling=Sampling(seed=3),
            max_new_tokens=60,
        )  # fmt: skip
        stats, fates = answer.stats, answer.fates
        assert stats.emitted == len(answer.tokens) == 60
        assert stats.accepted == fates.count(Fate.ACCEPTED)
        assert stats.rounds == 60 - fates.count(Fate.ACCEPTED)
        assert stats.tokens_per_round == 60 / stats.rounds
        assert stats.acceptance_rate == stats.accepted / stats.drafted
        assert sum(stats.accepted_by_position) == stats.accepted
        assert stats.reached_by_position[0] <= stats.rounds
        for reached, before in zip(
            stats.reached_by_position[1:], stats.accepted_by_position, strict=False
        ):
            assert reached <= before
        assert all(0 <= share <= 1 for share in stats.acceptance_by_position)
        assert stats.seconds.total > 0
        assert stats.to_dict()["accepted"] == stats.accepted


def test_logprobs_have_the_texts_of_their_tokens() -> None:
    """Joined they are the answer; a token that is part of a character is shown as such."""
    target = Reciter(TEXT)
    answer = fr.generate(target, "the", max_new_tokens=90, logprobs=2, stop_tokens=[target.end])
    assert answer.logprobs is not None
    assert answer.logprobs[-1].text == END
    raw = b"".join(token_bytes(target.tokenizer, each.token) for each in answer.logprobs[:-1])
    assert raw.decode() == answer.text
    for each in answer.logprobs:
        assert each.text == token_text(target.tokenizer, each.token)
        assert each.top_texts == tuple(token_text(target.tokenizer, one) for one, _ in each.top)
    assert "�" in {each.text for each in answer.logprobs}
    assert " dog" in {each.text for each in answer.logprobs}


def test_texts_of_tokenizers_of_other_kinds() -> None:
    class Words:
        """Marks spaces as sentencepiece does, and knows nothing else."""

        def convert_ids_to_tokens(self, token: int) -> str | None:
            return {0: "▁the", 1: "<0xF0>", 2: "dog"}.get(token)

    class Letters:
        def decode(self, tokens: list[int]) -> str:
            return "".join(map(chr, tokens))

    words = Words()
    assert [token_text(words, token) for token in range(4)] == [" the", "�", "dog", ""]
    assert token_text(Letters(), 97) == "a"
