"""Prompts of several parts, read by engines that have drafted before."""

from __future__ import annotations

from typing import Any

import pytest
from asking import ask
from serving import PROMPT, Babbler

from forerun.drafters import Suffix
from forerun.engine.pacing import MOST_PACED_TOKENS

DRAFTED = {"drafter": "suffix"}
SHORT = {"prompt": PROMPT, "max_tokens": 40, "speculation": DRAFTED}  # judges guesses
LONG = {"prompt": PROMPT * 40, "max_tokens": 8}


def roomy() -> Babbler:
    """A model whose context holds the long prompt, which is read in several rounds."""
    target = Babbler()
    target.max_context = 4096
    assert len(target.tokenizer.encode(LONG["prompt"])) > MOST_PACED_TOKENS
    return target


@pytest.mark.parametrize("speculation", [DRAFTED, {"draft_length": 0}], ids=["drafted", "plain"])
def test_a_long_prompt_after_a_request_that_was_drafted_for(speculation: dict[str, Any]) -> None:
    body = {**LONG, "speculation": speculation}
    drafters = {"suffix": Suffix()}  # which says how sure it is of each guess
    alone = ask({"body": body}, target=roomy(), drafters=drafters)
    first, second = ask({"body": SHORT}, {"body": body}, target=roomy(), drafters=drafters)
    assert (alone.status, first.status, second.status) == (200, 200, 200)
    assert second.json()["texts"] == alone.json()["texts"]
