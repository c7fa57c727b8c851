"""Drafting in another tokenizer changes how fast the text comes, not the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reciting import CORPUS, END, TEXT, Reciter
from tiny_models import Architecture
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import forerun as fr
from forerun import Sampling
from forerun.drafters import Model, ThroughText, registry, through_text
from forerun.models import FunctionModel, HuggingFaceModel, TableModel


class Other(FunctionModel):
    """Recites the same text in tokens of another kind, from wherever the text has got to."""

    def __init__(self, text: str, doubt: float = 0.0) -> None:
        self.tokenizer = other_tokenizer()
        self.letters = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        self.script = self._letters(self.tokenizer.encode(text))
        self.doubt = doubt
        super().__init__(self._law, vocab_size=len(self.letters))
        self.name = "other"

    def _letters(self, ids: Any) -> str:
        """Bytes, each as a character of its own."""
        return "".join(self.letters[token] for token in ids)

    def _law(self, ids: Any) -> Any:
        law = np.random.default_rng([*ids]).dirichlet(np.ones(len(self.letters)))
        said = self._letters(ids)
        left = self.script[len(said) :] if self.script.startswith(said) else ""
        fitting = [i for i, letters in enumerate(self.letters) if left.startswith(letters)]
        best = max(fitting, key=lambda i: len(self.letters[i]), default=self.tokenizer.eos_token_id)
        return self.doubt * law + (1 - self.doubt) * np.eye(len(self.letters))[best]


def other_tokenizer() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<s>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def test_it_has_a_name_on_the_command_line() -> None:
    other = Other(TEXT)
    made = registry.make_one("through-text:./other", load=lambda name: other)
    assert isinstance(made, ThroughText)
    assert made.model is other


TARGET = Reciter(TEXT)
HOW: dict[str, Any] = {"max_new_tokens": 90, "stop_tokens": [TARGET.end]}


def test_the_tokenizers_really_differ() -> None:
    with pytest.raises(fr.InputError, match=r"tokenizers of reciter and other differ.*ThroughText"):
        fr.generate(TARGET, "the", drafter=Model(Other(TEXT)), **HOW)


@pytest.mark.parametrize("rule", ["match", "ratio"])
@pytest.mark.parametrize("doubt", [0.0, 0.2])
def test_the_text_is_that_of_plain_decoding(doubt: float, rule: str) -> None:
    """Through emoji and other characters that neither tokenizer has whole."""
    sampling = Sampling(seed=1)
    wanted = fr.generate(TARGET, "the", drafter=None, sampling=sampling, **HOW)
    assert wanted.text == TEXT.removeprefix("the")
    for draft_length in (1, 4, 7):
        found = fr.generate(
            TARGET, "the", drafter=ThroughText(Other(TEXT, doubt)), draft_length=draft_length,
            rule=rule, sampling=sampling, **HOW,
        )  # fmt: skip
        assert (found.text, found.tokens) == (wanted.text, wanted.tokens)
        assert found.stats.notes == []
        assert found.stats.accepted >= 10, "translation must be good for something"


def test_sampled_text_under_match_in_a_batch() -> None:
    target, drafter = Reciter(TEXT, doubt=0.3), ThroughText(Other(TEXT, doubt=0.1))
    prompts = ["the", "the dog", [TARGET.end], "naïve 🦊"]
    how = {"sampling": Sampling(seed=3), **HOW, "max_new_tokens": 30}
    wanted = fr.generate(target, prompts, drafter=None, **how)
    for draft_length in (1, 4):
        found = fr.generate(
            target, prompts, drafter=drafter, draft_length=draft_length, batch_size=3, **how
        )
        assert [each.tokens for each in found] == [each.tokens for each in wanted]
        assert [each.stats.notes for each in found] == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize("look_behind", [through_text.LOOK_BEHIND, 0])
def test_rows_of_a_transformers_drafter_are_rolled_back(
    look_behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache holds text that was re-tokenized or refused; the next draft must not see it.

    Were it to, drafts would differ from those of a drafter that stores nothing.  Looking behind
    spares nearly all roll-backs, so that is tried without as well.
    """
    monkeypatch.setattr(through_text, "LOOK_BEHIND", look_behind)
    tokenizer = other_tokenizer()
    model = Architecture("llama", "crop", {"vocab_size": len(tokenizer)}).build()
    target = Reciter(TEXT, doubt=0.3)
    how = {"sampling": Sampling(seed=3), "draft_length": 4, **HOW, "max_new_tokens": 40}
    kept = HuggingFaceModel(model, tokenizer)
    fresh = HuggingFaceModel(model, tokenizer, strategy="recompute")
    seen: dict[str, list[Any]] = {"kept": [], "fresh": []}
    for name, each in (("kept", kept), ("fresh", fresh)):
        drafter = ThroughText(each)
        propose = drafter.propose

        def watched(
            *arguments: Any, name: str = name, propose: Any = propose, **options: Any
        ) -> Any:
            guesses = propose(*arguments, **options)
            seen[name].append([guess.tokens for guess in guesses])
            return guesses

        drafter.propose = watched  # type: ignore[method-assign]
        answer = fr.generate(target, ["the", "dog"], drafter=drafter, **how)
        assert answer[0].stats.notes == []
    assert seen["kept"] == seen["fresh"]
    assert sum(len(tokens) for round_ in seen["kept"] for tokens in round_) > 20


def test_a_short_context_ends_the_drafting_not_the_text() -> None:
    short = Other(TEXT)
    short.max_context = 30
    sampling = Sampling(seed=1)
    wanted = fr.generate(TARGET, "the", drafter=None, sampling=sampling, **HOW)
    found = fr.generate(TARGET, "the", drafter=ThroughText(short), sampling=sampling, **HOW)
    assert found.tokens == wanted.tokens
    assert found.stats.drafted > 0
    assert set(found.fates[-20:]) == {fr.Fate.BONUS}


def test_both_sides_need_a_tokenizer() -> None:
    table = TableModel.random(vocab_size=4, order=1, seed=0)
    with pytest.raises(fr.InputError, match="needs the drafter's tokenizer"):
        ThroughText(table)
    with pytest.raises(fr.InputError, match="needs the target's tokenizer"):
        fr.generate(table, [1], drafter=ThroughText(Other(TEXT)))
