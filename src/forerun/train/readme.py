"""The page that goes with a trained drafter: what it was made from, how, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forerun.drafters.heads.design import Design
from forerun.train.held_out import LENGTHS, HeldOutFigures
from forerun.train.training import Progress


def card(
    target: str,
    design: Design,
    progress: Progress,
    figures: Sequence[HeldOutFigures],
    facts: Mapping[str, str],
) -> str:
    """The card as Markdown; `facts` are extra rows of the first table."""
    rows = {
        "target": target,
        "reads the hidden states after layers": ", ".join(map(str, design.layers)),
        "draft vocabulary": f"{design.num_tokens:,} tokens",
        **facts,
        "steps": f"{progress.steps:,}",
        "tokens trained on": f"{progress.tokens / 1e6:.1f} million, repetitions included",
        "seconds of training": f"{progress.seconds:.0f}",
    }
    lines = [f"# A drafter for {target}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    lines += ["", "## Tokens per round on held-out prompts", ""]
    lines += [
        "Emitted tokens over rounds of a chain of K guesses under the rule `match`, on the",
        "target's own answers; the round that reads the prompt is not counted.",
    ]
    for entry in figures:
        lines += ["", f"Temperature {entry.temperature:g}:", ""]
        lines += ["| group | " + " | ".join(f"K = {length}" for length in LENGTHS) + " |"]
        lines += ["|---" * (len(LENGTHS) + 1) + "|"]
        for group, row in entry.by_group.items():
            lines += [f"| {group} | " + " | ".join(f"{value:.2f}" for value in row) + " |"]
        means = " | ".join(f"{entry.mean(length):.2f}" for length in LENGTHS)
        lines += [f"| mean of the groups | {means} |"]
    lines += ["", "## While it trained", "", "K = 5, mean of the groups.", ""]
    names = list(progress.history[-1]) if progress.history else []
    lines += ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"] if names else []
    lines += [f"| {' | '.join(str(v) for v in row.values())} |" for row in progress.history]
    return "\n".join(lines) + "\n"
