"""Prompts by task group: 48 of our own, and files of JSON lines in Spec-Bench's format.

The gain of speculation depends on the task: a summary repeats its source, a poem does not.  So
prompts have a task group, and figures are reported per group and overall.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, explain

GROUPS = {
    "chat": "chat",
    "translation": "translation",
    "summarization": "summarisation",
    "qa": "question answering",
    "math_reasoning": "maths",
    "rag": "retrieval",
}
"""Spec-Bench's six task groups, in its leaderboard's order, with their names in reports."""

CHAT = {
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
    "mt_bench",
}
"""The categories that belong to the group `chat`."""

UNGROUPED = "prompts"
"""The group of prompts without a category."""


@dataclass(frozen=True)
class Prompt:
    """A user's turns of a conversation; `id` is unique within a set of prompts."""

    id: str
    group: str
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        """The first turn."""
        return self.turns[0]


def own() -> list[Prompt]:
    """The set that ships with Forerun, eight prompts in each of the six groups."""
    file = resources.files(__name__) / "tasks.jsonl"
    return parse(file.read_text(encoding="utf-8"), "the prompts of Forerun")


def read(file: str | Path, *, bare_lines: bool = False) -> list[Prompt]:
    """The prompts of a file in the format that `parse` describes."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        wrong, cure = f"A file cannot be read ({reason}).", "Name a text file that exists."
        raise InputError(explain(wrong, repr(str(file)), cure)) from error
    return parse(text, str(file), bare_lines=bare_lines)


def parse(text: str, name: str, *, bare_lines: bool = False) -> list[Prompt]:
    """The prompts of a text with one JSON object per line, with "prompt", or "turns" as in
    Spec-Bench.

    name: the name of the file in errors.  bare_lines: a line that is no JSON object is a prompt
    itself.  Raises InputError for lines that cannot be read.
    """
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        prompt = _prompt(line, number, name, bare_lines=bare_lines)
        if prompt.id in prompts:
            wrong = f"Line {number} of {name} repeats an id."
            cure = "Give each prompt a question_id of its own, or leave them all out."
            raise InputError(explain(wrong, repr(prompt.id), cure))
        prompts[prompt.id] = prompt
    if not prompts:
        cure = 'Write one prompt per line, as {"prompt": "..."}.'
        raise InputError(explain("The list holds no prompt.", repr(name), cure))
    return list(prompts.values())


def pick(prompts: Sequence[Prompt], per_group: int) -> list[Prompt]:
    """At most `per_group` prompts of each group, evenly spaced; groups in leaderboard order."""
    if per_group < 1:
        cure = "Use 1 or more, or leave it out for all of them."
        raise InputError(explain("A group cannot hold so few prompts.", per_group, cure))
    present = dict.fromkeys(prompt.group for prompt in prompts)
    order = [group for group in GROUPS if group in present]
    picked: list[Prompt] = []
    for group in [*order, *(group for group in present if group not in GROUPS)]:
        members = [prompt for prompt in prompts if prompt.group == group]
        step = max(1, len(members) // per_group)  # the topics of MT-Bench are in blocks
        picked += members[::step][:per_group]
    return picked


def _prompt(line: str, number: int, name: str, *, bare_lines: bool) -> Prompt:
    if bare_lines and not line.lstrip().startswith("{"):
        return Prompt(str(number), UNGROUPED, (line,))
    try:
        row = row_of(line)
        turns = tuple(turns_of(row))
        category = row.get("category", UNGROUPED)
        if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise ValueError("a turn is empty or no text")
        if not isinstance(category, str) or not category.strip():
            raise ValueError("its category is no text")
    except ValueError as error:
        wrong = f"Line {number} of {name} holds no prompt ({error})."
        cure = 'Write {"prompt": "..."}, or {"turns": ["..."]} as in Spec-Bench, on one line.'
        raise InputError(explain(wrong, repr(line[:60]), cure)) from error
    return Prompt(
        str(row.get("question_id", number)), "chat" if category in CHAT else category, turns
    )


def row_of(line: str) -> dict[str, Any]:
    """The JSON object of a line; raises ValueError with the reason if it is not one."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        reason = f"it is no JSON: {error.msg}, at character {error.pos + 1}"
        raise ValueError(reason) from error
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    return row


def turns_of(row: dict[str, Any]) -> list[Any]:
    """The turns of a row; raises ValueError with the reason if it has none."""
    if "prompt" in row:
        return [row["prompt"]]
    if "turns" not in row:
        keys = ", ".join(map(repr, row)) or "none"
        raise ValueError(f"its keys are {keys[:60]}; known are 'prompt' and 'turns'")
    turns = row["turns"]
    if not isinstance(turns, list):
        raise ValueError("its turns are no list")
    return turns
