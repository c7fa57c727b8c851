"""A byte-level tokenizer whose characters span tokens, and a model that recites a text in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from forerun.models import FunctionModel

END = "<end>"
CORPUS = [
    "the quick brown fox jumps over the lazy dog and the dog answers",
    "stop here, stop there; one stop after another. STOP! now\n\nUser: hello",
    "漢字とかな 漢字 世界 世 界 你好",
]
TEXT = "the dog 🦊 answers 世界: 你好! 👩‍👩‍👧 naïve café, stop 🎉🎉 and 𝔘𝔫𝔦 over\n\nUser: hello"


@cache
def byte_tokenizer(vocab_size: int = 330) -> Any:
    """Emoji and accents are in no merge, so each is two tokens or more; CJK is partly merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


def token_ids(text: str, vocab_size: int = 330) -> list[int]:
    return list(byte_tokenizer(vocab_size).encode(text))


class Reciter(FunctionModel):
    """Continues a text as it was written, with some chance of anything else at every token."""

    def __init__(self, text: str, doubt: float = 0.0, vocab_size: int = 330) -> None:
        self.tokenizer = byte_tokenizer(vocab_size)
        self.size = len(self.tokenizer)
        self.script = [*token_ids(text, vocab_size), self.tokenizer.eos_token_id]
        self.doubt = doubt
        super().__init__(self._law, vocab_size=self.size)
        self.name = "reciter"

    def _law(self, ids: np.ndarray[Any, Any]) -> Any:
        """The script is followed by position; doubt depends on the text."""
        law = np.random.default_rng([len(ids), *ids[-3:]]).dirichlet(np.ones(self.size))
        law *= self.doubt
        law[self.script[min(len(ids), len(self.script) - 1)]] += 1 - self.doubt
        return law

    @property
    def end(self) -> int:
        return int(self.tokenizer.eos_token_id)

    def prompt(self, num_tokens: int = 1) -> list[int]:
        return self.script[:num_tokens]


def num_split(tokens: Sequence[int]) -> int:
    """How many of the tokens are only part of a character."""
    return sum("�" in byte_tokenizer().decode([token]) for token in tokens)
