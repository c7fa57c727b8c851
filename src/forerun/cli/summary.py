"""Statistics of a generation, as a few lines of text or as JSON."""

from __future__ import annotations

from typing import Any

from forerun.base import clock
from forerun.engine.results import Generation


def summary(generation: Generation) -> str:
    """Rounds and speed; acceptance, if anything was drafted, and why little was; time by stage."""
    stats, total = generation.stats, generation.stats.seconds.total
    speed = f"{stats.emitted / total:.1f} tokens/s" if total else "no time at all"
    lines = [
        f"{stats.emitted} tokens in {stats.rounds} rounds, {stats.tokens_per_round:.2f} per round; "
        f"{total:.2f} s, {speed}; finish reason: {generation.finish_reason}"
    ]
    if stats.drafted:
        rates = zip(stats.acceptance_by_position, stats.reached_by_position, strict=True)
        positions = " ".join(f"{rate:.0%}" if reached else "-" for rate, reached in rates)
        lines.append(
            f"draft: {stats.accepted} of {stats.drafted} tokens accepted "
            f"({stats.acceptance_rate:.0%}); by position, once reached: {positions}"
        )
    if stats.speed_against_plain is not None:
        lines[-1] += f"; about {stats.speed_against_plain:.2f}x as fast as without drafts"
    if stats.why_few is not None:
        lines.append(f"few drafts: {stats.why_few}")
    if total:
        shares = vars(stats.seconds).items()
        lines.append(
            "time: " + ", ".join(f"{stage} {spent / total:.1%}" for stage, spent in shares)
        )
    if stats.compiling:
        when = "once on this machine"
        if not clock.is_code_kept:
            when = "at every start: Numba may write nowhere; set NUMBA_CACHE_DIR to a folder"
        lines.append(f"compiling: {stats.compiling:.1f} s more, {when}")
    return "\n".join(lines)


def as_dict(generation: Generation, index: int = 0, sample: int = 0) -> dict[str, Any]:
    """The generation as a dictionary, with the index of its prompt and of its sample."""
    report: dict[str, Any] = {
        "index": index,
        "sample": sample,
        "text": generation.text,
        "tokens": generation.tokens,
        "fates": [fate.value for fate in generation.fates],
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "stats": generation.stats.to_dict(),
    }
    return report if generation.error is None else {**report, "error": generation.error}
