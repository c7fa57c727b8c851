"""Reads prompts with their task groups from JSON lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.prompts import row_of, turns_of

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
CHAT = "mt_bench"  # Spec-Bench calls its other groups by topic


@dataclass(frozen=True)
class TrainingPrompt:
    """A prompt and its task group."""

    text: str
    group: str


def read_prompts(file: str) -> list[TrainingPrompt]:
    """The prompts in a file of JSON lines: {"prompt": ...}, or {"category": ..., "turns": [...]} as
    in Spec-Bench."""
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        cure = "Name a file of JSON lines that exists."
        raise InputError(
            explain(f"Prompts cannot be read ({reason}).", repr(file), cure)
        ) from error
    prompts = [_prompt(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        cure = 'Write one {"prompt": "..."} per line.'
        raise InputError(explain("The file holds no prompt.", repr(file), cure))
    return prompts


def pick(prompts: Sequence[TrainingPrompt], per_group: int) -> list[TrainingPrompt]:
    """At most `per_group` prompts of each group, evenly spaced."""
    picked: list[TrainingPrompt] = []
    for group in dict.fromkeys(prompt.group for prompt in prompts):
        members = [prompt for prompt in prompts if prompt.group == group]
        picked += members[:: max(1, len(members) // per_group)][:per_group]
    return picked


def _prompt(file: str, number: int, line: str) -> TrainingPrompt:
    try:
        row = row_of(line)
        text = next(iter(turns_of(row)), None)
        if isinstance(text, str) and text.strip():
            return TrainingPrompt(text, _group(row))
        reason = "its prompt is no text"
    except ValueError as error:
        reason = str(error)
    cure = 'Write {"prompt": "..."}, or {"category": "...", "turns": ["..."]}, on one line.'
    wrong = f"Line {number} of {file} is no prompt in JSON ({reason})."
    raise InputError(explain(wrong, repr(line[:60]), cure))


def _group(row: dict[str, Any]) -> str:
    if "category" in row:
        return row["category"] if row["category"] in TASKS else CHAT
    return str(row.get("source", "prompts"))
