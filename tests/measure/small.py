"""A tiny target, a drafter that often agrees with it, and prompts in two task groups."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from tiny_models import Architecture

import forerun as fr
from forerun.measure.records import AnswerRecord, Cell, Run
from forerun.prompts import Prompt

PROMPTS = [Prompt(str(i), "chat" if i % 2 else "qa", (f"prompt {i} of a few",)) for i in range(4)]


class Letters:
    """A tokenizer of one token per letter."""

    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) % 61 for letter in text]

    def get_vocab(self) -> dict[str, int]:
        return {chr(48 + token): token for token in range(61)}

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(48 + token) for token in tokens)


def target() -> Any:
    return fr.wrap(Architecture("llama", "crop", dtype=torch.float32).build(), Letters())


def relative(model: Any, blur: float = 0.02) -> fr.drafters.Model:
    """The target with blurred weights: right about half the time."""
    inner = copy.deepcopy(model.model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in inner.parameters():
            weight.add_(blur * torch.randn_like(weight))
    return fr.drafters.Model(fr.wrap(inner, Letters()))


def cell(drafter: str | None = "ngram", draft_length: Any = 4, **changes: Any) -> Cell:
    options = {"tree": None, "batch": 1, "temperature": 0.0, "rule": "match", **changes}
    return Cell("target", drafter, draft_length, **options)


def answer(prompt: str = "a", accepted: Sequence[int] = (2, 0, 4), **changes: Any) -> AnswerRecord:
    """An answer with drafts of four tokens in every round, of which so many were accepted."""
    new_tokens = sum(accepted) + len(accepted)
    fields: dict[str, Any] = {
        "prompt": prompt,
        "group": "qa",
        "prompt_tokens": 10,
        "new_tokens": new_tokens,
        "rounds": len(accepted),
        "drafted": 4 * len(accepted),
        "accepted": sum(accepted),
        "reached_by_position": [sum(n >= slot for n in accepted) for slot in range(4)],
        "accepted_by_position": [sum(n > slot for n in accepted) for slot in range(4)],
        "drafted_by_round": [4] * len(accepted),
        "accepted_by_round": list(accepted),
        "first_tokens": accepted[0] + 1,
        "first_seconds": 1.0,
        "seconds": 3.0,
        "seconds_by_stage": {"draft": 1.0, "score": 1.0, "verify": 0.5, "commit": 0.5},
        "digest": "same",
    }
    return AnswerRecord(**{**fields, **changes})


def run(cell: Cell, *answers: AnswerRecord, repeat: int = 0) -> Run:
    return Run(cell, repeat, max(each.seconds for each in answers), list(answers))
