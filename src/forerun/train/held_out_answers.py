"""Prompts to measure with, and the target's answers to them, which are not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.base.errors import InputError, explain
from forerun.train.chat import Chat
from forerun.train.prompts import TrainingPrompt, pick
from forerun.train.shards import Spoken
from forerun.train.stages import answer_each

HEAT = 0.8  # the second temperature that is measured


@dataclass(frozen=True)
class HeldOut:
    """The number of held-out prompts, and the length of their answers."""

    per_group: int
    total: int  # taken from the training prompts if there is no held-out file
    num_tokens: int

    @classmethod
    def on(cls, device: Any) -> HeldOut:
        """Sizes that take seconds on this device: smaller ones on a CPU."""
        return cls(8, 48, 128) if device.type == "cuda" else cls(2, 12, 64)


def divided(
    prompts: Sequence[TrainingPrompt], held_out: Sequence[TrainingPrompt], size: HeldOut
) -> tuple[list[TrainingPrompt], list[str]]:
    """Prompts to measure with, and prompts to train on, of which none is there twice."""
    measured = pick(held_out, size.per_group) if held_out else _taken_out(prompts, size.total)
    kept = {prompt.text for prompt in (*measured, *held_out)}
    trained_on = [prompt.text for prompt in prompts if prompt.text not in kept]
    if prompts and not trained_on:
        wrong = "No prompt is left to train on: all of them are needed to measure with."
        cure = "Add more to --prompts, the more the better."
        raise InputError(explain(wrong, f"{len(prompts)} prompts", cure))
    return measured, list(dict.fromkeys(trained_on))


def held_out_answers(
    model: Any,
    chat: Chat,
    endings: Sequence[int],
    prompts: Sequence[TrainingPrompt],
    *,
    num_rows: int,
    seed: int,
) -> Iterator[Spoken]:
    """The target's answers to held-out prompts, greedy and sampled."""
    context = getattr(model.config, "max_position_embeddings", None) or 1 << 20
    count = min(HeldOut.on(model.device).num_tokens, context // 2)
    longest = context - count
    asked = [chat.ask(prompt.text)[-longest:] for prompt in prompts]
    for temperature in (0.0, HEAT):
        for index, text, start in answer_each(
            model,
            asked,
            endings=endings,
            temperature=temperature,
            num_rows=min(num_rows, 64),
            max_new_tokens=count,
            seed=seed,
        ):
            is_answer = np.arange(len(text)) >= start
            yield Spoken(np.array(text, np.int32), is_answer, prompts[index].group, temperature)


def _taken_out(prompts: Sequence[TrainingPrompt], count: int) -> list[TrainingPrompt]:
    """Every n-th prompt, held out of training to measure with."""
    return list(prompts[:: max(2, len(prompts) // count)][:count])
