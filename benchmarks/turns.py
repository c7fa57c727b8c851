"""Contenders take turns on each prompt, so that a slow minute of the machine hits them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

import forerun as fr
from spec_bench import summary

Contender = Callable[[list[int]], tuple[list[int], int]]  # prompt -> (new tokens, rounds)


@dataclass
class Record:
    """What one contender did, one entry per prompt and repeat."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def tokens_per_second(self) -> float:
        """Of all its time, prompts included."""
        return sum(map(len, self.tokens)) / sum(self.seconds)

    def tokens_per_round(self) -> dict[str, float]:
        """Of each task group, tokens over rounds, and the mean over groups."""
        found = {}
        for group in dict.fromkeys(self.groups):
            own = [i for i, name in enumerate(self.groups) if name == group]
            found[group] = sum(len(self.tokens[i]) for i in own) / sum(self.rounds[i] for i in own)
        return {"mean": sum(found.values()) / len(found), **found}

    def speed_against(self, other: Record) -> dict[str, Any]:
        """Ratios of seconds per token within a prompt, and of all seconds per token."""
        pairs = zip(other._per_token(), self._per_token(), strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        by_group = {
            group: summary(
                [r for r, name in zip(ratios, self.groups, strict=True) if name == group]
            )
            for group in dict.fromkeys(self.groups)
        }
        return {
            **summary(ratios),
            "overall": self.tokens_per_second() / other.tokens_per_second(),
            "by_group": {group: found["median"] for group, found in by_group.items()},
        }

    def _per_token(self) -> list[float]:
        return [s / len(tokens) for s, tokens in zip(self.seconds, self.tokens, strict=True)]

    def same_text_as(self, other: Record) -> int:
        """How many of its texts are the other's, token by token."""
        return sum(ours == theirs for ours, theirs in zip(self.tokens, other.tokens, strict=True))


def take_turns(
    contenders: dict[str, Contender], prompts: Sequence[tuple[str, list[int]]], repeats: int = 1
) -> dict[str, Record]:
    """Every contender on every prompt (task group, tokens), beginning with another one each lap."""
    records = {name: Record() for name in contenders}
    for run in contenders.values():
        run(prompts[0][1])  # the first run compiles, allocates and warms up
    laps = [(group, prompt) for _ in range(repeats) for group, prompt in prompts]
    names = list(contenders)
    for lap, (group, prompt) in enumerate(tqdm(laps, "prompts")):
        first = lap % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            tokens, rounds = contenders[name](prompt)
            records[name].seconds.append(time.perf_counter() - began)
            records[name].tokens.append(list(tokens))
            records[name].rounds.append(rounds)
            records[name].groups.append(group)
    return records


def encode(target: Any, text: str) -> list[int]:
    """A question as the chat template puts it."""
    chat = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return list(target.tokenizer.encode(chat, add_special_tokens=False))


def ours(target: Any, size: int, **options: Any) -> Contender:
    """Our engine, until the answer ends or has `size` tokens."""

    def run(prompt: list[int]) -> tuple[list[int], int]:
        found = fr.generate(target, prompt, max_new_tokens=size, **options)
        return list(found.tokens), found.stats.rounds

    return run


def theirs(target: Any, size: int, **options: Any) -> Contender:
    """transformers' own `generate` on the model that the target was made from."""
    model = target.model
    passes = [0]
    model.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))

    def run(prompt: list[int]) -> tuple[list[int], int]:
        ids = torch.tensor([prompt])
        passes[0] = 0
        fixed = {"max_new_tokens": size, "pad_token_id": 0}
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), **{"do_sample": False, **fixed, **options}
            )
        return out[0, len(prompt) :].tolist(), passes[0]

    return run
