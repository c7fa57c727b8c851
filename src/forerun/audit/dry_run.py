"""A dry run: lists the requests that an audit would send, and their greatest cost."""

from __future__ import annotations

import json
from dataclasses import dataclass

from forerun.audit import check_options, check_repeats, check_stops
from forerun.audit.auditing import Settings, allowance
from forerun.audit.conditions import CONDITIONS
from forerun.audit.dialects import Dialect
from forerun.audit.endpoint import PLAIN
from forerun.audit.meeting import base_path
from forerun.audit.prompts import COPYING, prompts
from forerun.audit.questions import Question

CHARACTERS = 4
"""The approximate number of characters in a token."""


@dataclass(frozen=True)
class Planned:
    """A check and its greatest cost."""

    check: str
    num_requests: int
    num_tokens: int  # generated, at most
    num_prompt_tokens: int  # about


def planned(settings: Settings) -> list[Planned]:
    """All checks with their greatest costs; the check of the law gets the rest of the budget."""
    copying = len(COPYING.text) // CHARACTERS
    usual = len(prompts(settings.seed)[0].text) // CHARACTERS
    stops = 1 + len(check_stops.LIMITS) + 4
    stop_tokens = 5 * check_stops.LENGTH + sum(check_stops.LIMITS)
    repeats = 2 * (5 + check_repeats.NUM_OTHERS) + 2
    repeat_tokens = 14 * check_repeats.LENGTH + check_repeats.NUM_OTHERS * check_repeats.LENGTH
    plan = [
        Planned("meeting", 2, 2, 2 * usual),
        _within(settings, "stops and limits", stops, stop_tokens, copying),
        _within(settings, "repeatability", repeats, repeat_tokens, usual),
    ]
    most = allowance("options", settings.budget) or 0
    per_text = 1 + check_options.LENGTH
    plan.append(Planned("options", most * per_text // (2 * check_options.LENGTH), most, 0))
    left = max(0, settings.budget - sum(item.num_tokens for item in plan) - 1)
    length = CONDITIONS[0].length
    num_requests = left * (1 + length) // (2 * length)
    plan.append(Planned("law", num_requests, left, num_requests * (usual + length // 2)))
    plan.append(Planned("same model", 1, 1, usual))
    return plan


def _within(settings: Settings, check: str, requests: int, tokens: int, prompt: int) -> Planned:
    """The greatest cost of a check that has a share of the budget. tokens: what it needs to be
    complete."""
    most = allowance(check, settings.budget) or 0
    return Planned(check, requests, min(tokens, most), requests * prompt)


def rehearse(settings: Settings) -> str:
    """The plan as text, with an example request of each kind."""
    plan = planned(settings)
    lines = [
        f"{settings.url}: nothing is sent.  At most {settings.budget} tokens are generated.",
        "",
    ]
    lines.append(f"{'check':<18}{'requests':>10}{'tokens':>10}{'of prompts':>12}")
    lines += [
        f"{item.check:<18}{item.num_requests:>10}{item.num_tokens:>10}{item.num_prompt_tokens:>12}"
        for item in plan
    ]
    dialect = Dialect(
        "completions", base_path(settings.url), settings.model or "(the first listed)"
    )
    prompt = prompts(settings.seed)[0].text
    length = CONDITIONS[0].length
    examples = (
        ("a text", Question(prompt, length, options={**PLAIN, "seed": 1001})),
        ("its distribution at the first place", Question(prompt, 1, options=PLAIN)),
        ("a stop", Question(COPYING.text, check_stops.LENGTH, options={"temperature": 0.0},
                            stop=(" four",))),
    )  # fmt: skip
    for name, question in examples:
        call = dialect.call(question)
        lines += ["", f"{name}: {call.method} {call.path}", f"  {json.dumps(call.body)}"]
    return "\n".join(lines)
