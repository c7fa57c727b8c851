"""Runs scripts with the target on many rows at once, and returns the conversations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forerun.base.errors import InputError, explain
from forerun.train.chat import Chat
from forerun.train.conversations import Author, Say, Script
from forerun.train.sampler import RowTask, Slots
from forerun.train.shards import Spoken

STRIDE = 32  # passes between two checks for finished rows
MOST_TRIES = 2000  # consecutive scripts that do not fit before giving up
SHORTEST = 8  # free tokens of a row needed to begin another turn


@dataclass
class Talk:
    """A running script: its text so far, and the step that waits for the model's reply."""

    script: Script
    say: Say
    tokens: list[int] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)  # spans of tokens

    def task(self, row: int) -> RowTask:
        say = self.say
        return RowTask(row, self.tokens, say.temperature, len(self.tokens) + say.limit)

    def spoken(self) -> Spoken | None:
        """The conversation up to its last answer; None if the model has not answered yet."""
        if not self.answers:
            return None
        end = self.answers[-1][1]
        is_answer = np.zeros(end, bool)
        for start, stop in self.answers:
            is_answer[start:stop] = True
        return Spoken(np.array(self.tokens[:end], np.int32), is_answer)


class Stage:
    """Rows that run one script after another."""

    def __init__(self, slots: Slots, next_script: Callable[[], Script]) -> None:
        self.slots, self.next_script = slots, next_script
        self.talks: dict[int, Talk] = {}

    def play(self) -> list[Spoken]:
        """Advance all rows by STRIDE passes. Returns the conversations that had ended before
        that."""
        ended: list[Spoken] = []
        fresh: list[RowTask] = []
        going_on: list[RowTask] = []
        for row, tokens in self.slots.done().items():
            talk = self.talks.get(row)
            if talk is not None and self._hear(talk, tokens):
                going_on.append(talk.task(row))
                continue
            if talk is not None and (spoken := talk.spoken()) is not None:
                ended.append(spoken)
            self.talks[row] = self._begin()
            fresh.append(self.talks[row].task(row))
        self.slots.put(going_on, fresh=False)
        self.slots.put(fresh, fresh=True)
        self.slots.advance(STRIDE)
        return ended

    def _begin(self) -> Talk:
        """Start the next script whose first step fits the context."""
        for _ in range(MOST_TRIES):
            script = self.next_script()
            talk = Talk(script, next(script))
            if self._speak(talk):
                return talk
        wrong = f"Hardly any prompt fits the {self.slots.context} tokens that answers get."
        received = f"{MOST_TRIES} longer ones in a row"
        raise InputError(explain(wrong, received, "Shorten the prompts, or add short ones."))

    def _hear(self, talk: Talk, tokens: list[int]) -> bool:
        """Give the model's reply to the script. Returns whether the script continues and fits."""
        start = len(talk.tokens)
        talk.tokens = tokens
        if talk.say.is_answer:
            talk.answers.append((start, len(tokens)))
        try:
            talk.say = talk.script.send(tokens[start:])
        except StopIteration:
            return False
        return self._speak(talk)

    def _speak(self, talk: Talk) -> bool:
        """Add the script's tokens to the text. Returns whether an answer still fits."""
        room = self.slots.context - len(talk.tokens) - len(talk.say.tokens)
        if room < SHORTEST:
            return False
        talk.tokens = [*talk.tokens, *talk.say.tokens]
        talk.say = replace(talk.say, limit=min(talk.say.limit, room))
        return True


@dataclass(frozen=True)
class Scale:
    """How many conversations run at once, how long they may be, and their share of the time."""

    num_rows: int
    context: int
    share: float


@dataclass(frozen=True)
class Assignment:
    """The prompts of one source of conversations, and how it asks them."""

    prompts: Sequence[str]
    asked: Sequence[int]  # how often each has been answered before
    endings: Sequence[int]
    scales: Sequence[Scale]
    answer_limit: int  # tokens of one answer
    seed: int


class Stages:
    """Generates conversations with one target; stages of all scales take turns by their share of
    time."""

    def __init__(self, model: Any, chat: Chat, work: Assignment) -> None:
        author = Author(chat, work.prompts, work.seed, work.answer_limit, asked=work.asked)
        kinds = (author.short, author.long)
        self._scales = work.scales
        self._stages = [
            Stage(Slots(model, scale.num_rows, scale.context, work.endings, seed), kind)
            for seed, (scale, kind) in enumerate(zip(work.scales, kinds, strict=False), work.seed)
        ]
        self._spent = [0.0] * len(self._stages)

    def play(self) -> list[Spoken]:
        """Advance one stage. Returns the conversations that had ended before that."""
        turn = min(range(len(self._stages)), key=lambda i: self._spent[i] / self._scales[i].share)
        began = time.perf_counter()
        ended = self._stages[turn].play()
        self._spent[turn] += time.perf_counter() - began
        return ended


def answer_each(
    model: Any,
    prompts: Sequence[Sequence[int]],  # token ids
    *,
    endings: Sequence[int],
    temperature: float,
    num_rows: int,
    max_new_tokens: int,
    seed: int,
) -> Iterator[tuple[int, list[int], int]]:
    """Answer prompts. Yields (prompt index, whole text, start of the answer), in no particular
    order."""
    context = max(map(len, prompts)) + max_new_tokens
    slots = Slots(model, min(num_rows, len(prompts)), context, endings, seed)
    waiting = list(enumerate(prompts))[::-1]
    playing: dict[int, int] = {}
    while waiting or playing:
        fresh = []
        for row, text in slots.done().items():
            if row in playing:
                index = playing.pop(row)
                yield index, text, len(prompts[index])
            if waiting:
                playing[row], tokens = waiting.pop()
                limit = len(tokens) + max_new_tokens
                fresh.append(RowTask(row, tokens, temperature, limit))
        slots.put(fresh, fresh=True)
        slots.advance(STRIDE if playing else 0)
