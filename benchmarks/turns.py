"""Contenders take turns on each prompt, so that a slow minute of the machine hits them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

import forerun as fr
from spec_bench import summary


class Answer(NamedTuple):
    """What a contender gives back."""

    tokens: list[int]
    rounds: int
    first_tokens: int  # of the first round, which reads the prompt
    first_seconds: float


Contender = Callable[[list[int]], Answer]


@dataclass
class Record:
    """What one contender did, one entry per prompt and repeat."""

    answers: list[Answer] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def tokens_per_second(self) -> float:
        """After the first round, which reads the prompt."""
        tokens = sum(len(each.tokens) - each.first_tokens for each in self.answers)
        return tokens / sum(self._later_seconds())

    def tokens_per_second_by_group(self) -> dict[str, float]:
        """Of each task group, after first rounds."""
        by_group: dict[str, tuple[int, float]] = {}
        for answer, seconds, group in zip(
            self.answers, self._later_seconds(), self.groups, strict=True
        ):
            tokens, total = by_group.get(group, (0, 0.0))
            by_group[group] = tokens + len(answer.tokens) - answer.first_tokens, total + seconds
        return {group: tokens / total for group, (tokens, total) in by_group.items()}

    def tokens_per_second_with_prompt(self) -> float:
        return sum(len(each.tokens) for each in self.answers) / sum(self.seconds)

    def tokens_per_round(self) -> dict[str, float]:
        """Of each task group, tokens over rounds, and the mean over groups."""
        found = {}
        for group in dict.fromkeys(self.groups):
            own = [a for a, name in zip(self.answers, self.groups, strict=True) if name == group]
            found[group] = sum(len(a.tokens) for a in own) / sum(a.rounds for a in own)
        return {"mean": sum(found.values()) / len(found), **found}

    def speed_against(self, other: Record) -> dict[str, Any]:
        """Ratios of seconds per token after the first round, within a prompt and of all together;
        and of all together with the prompts."""
        pairs = zip(other._per_token(), self._per_token(), self.groups, strict=True)
        ratios = [(theirs / ours, group) for theirs, ours, group in pairs if theirs and ours]
        by_group = {
            group: summary([ratio for ratio, name in ratios if name == group])["median"]
            for group in dict.fromkeys(self.groups)
        }
        with_prompt = self.tokens_per_second_with_prompt() / other.tokens_per_second_with_prompt()
        return {
            **summary([ratio for ratio, _ in ratios]),
            "overall": self.tokens_per_second() / other.tokens_per_second(),
            "overall_with_prompt": with_prompt,
            "by_group": by_group,
        }

    def _later_seconds(self) -> list[float]:
        pairs = zip(self.seconds, self.answers, strict=True)
        return [seconds - each.first_seconds for seconds, each in pairs]

    def _per_token(self) -> list[float | None]:
        """Seconds per token after the first round; None where there is none."""
        counts = [len(each.tokens) - each.first_tokens for each in self.answers]
        pairs = zip(self._later_seconds(), counts, strict=True)
        return [seconds / count if count else None for seconds, count in pairs]

    def same_text_as(self, other: Record) -> int:
        """How many of its texts are the other's, token by token."""
        pairs = zip(self.answers, other.answers, strict=True)
        return sum(ours.tokens == theirs.tokens for ours, theirs in pairs)


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
            records[name].answers.append(contenders[name](prompt))
            records[name].seconds.append(time.perf_counter() - began)
            records[name].groups.append(group)
    return records


def encode(target: Any, text: str) -> list[int]:
    """A question as the chat template puts it, or as it stands where there is none."""
    if not target.tokenizer.chat_template:
        return list(target.tokenizer.encode(text))
    chat = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return list(target.tokenizer.encode(chat, add_special_tokens=False))


def ours(target: Any, size: int, **options: Any) -> Contender:
    """Our engine, until the answer ends or has `size` tokens."""

    def run(prompt: list[int]) -> Answer:
        found = fr.generate(target, prompt, max_new_tokens=size, **{"drafter": None} | options)
        stats = found.stats
        first = stats.emitted_by_round[0], stats.seconds_by_round[0].total
        return Answer(list(found.tokens), stats.rounds, *first)

    return run


def theirs(target: Any, size: int, **options: Any) -> Contender:
    """transformers' own `generate` on the model that the target was made from."""
    model = target.model
    ends: list[float] = []  # of the passes of a call
    model.register_forward_hook(lambda *_: ends.append(time.perf_counter()))

    def run(prompt: list[int]) -> Answer:
        ids = torch.tensor([prompt])
        ends.clear()
        fixed = {"do_sample": False, "max_new_tokens": size, "pad_token_id": 0}
        began = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **{**fixed, **options})
        return Answer(out[0, len(prompt) :].tolist(), len(ends), 1, ends[0] - began)

    return run
