"""What would end a training run hours later, looked at before it begins."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from forerun.base.errors import InputError, explain
from forerun.drafters.heads.design import Design
from forerun.train.chat import Chat
from forerun.train.stages import SHORTEST

BYTES_PER_WEIGHT = 2 * 4 * 3  # two saved states at a time, each of weights and two moments
BYTES_PER_TOKEN = 16  # of collected answers, prompts included


def check_disk(folder: Path, design: Design, num_answer_tokens: int) -> None:
    """Refuse a disk without room for the answers and the state of the training."""
    needed = BYTES_PER_WEIGHT * sum(map(math.prod, design.shapes.values()))
    needed += BYTES_PER_TOKEN * num_answer_tokens
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        wrong = f"The disk has no room for this run, which takes up to {needed / 1e9:.1f} GB."
        received = f"{free / 1e9:.1f} GB free for {str(folder)!r}"
        raise InputError(explain(wrong, received, "Free some, or name another folder with --out."))


def check_prompts(chat: Chat, prompts: Sequence[str], context: int) -> None:
    """Refuse prompts of which none leaves room for an answer."""
    if not any(len(chat.ask(prompt)) + SHORTEST <= context for prompt in prompts):
        wrong = f"No prompt leaves room for an answer in {context} tokens."
        cure = "Shorten the prompts, or add short ones."
        raise InputError(explain(wrong, f"{len(prompts)} prompts", cure))
