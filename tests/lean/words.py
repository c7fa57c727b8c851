"""A tokenizer of words w0, w1, ... for tiny models in folders."""

from __future__ import annotations

from pathlib import Path

from tiny_models import VOCAB_SIZE
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast


def save_tokenizer(folder: Path) -> None:
    words = WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
