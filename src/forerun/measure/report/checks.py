"""Checks of our own claims by the sweep: predictions, the automatic K, the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from forerun.measure.naming import cell_words, length_words, series_of, setting_of
from forerun.measure.summary import CLOSE, Auto, Summary
from forerun.prompts import GROUPS


def checks(summary: Summary) -> str:
    """One paragraph per checked claim, with a table where there are several values."""
    return _predictions(summary) + _autos(summary.autos) + _replay(summary)


def _predictions(summary: Summary) -> str:
    if not summary.num_predicted:
        return ""
    close = f"{summary.num_close} of {summary.num_predicted}"
    words = f"<p><b>Predictions.</b> What the probe expected before the runs is within {CLOSE:.0%} "
    words += f"of the measured speed-up in {close} cells.</p>"
    if not summary.misses:
        return words
    rows = [
        [cell_words(miss.cell), f"{miss.predicted:.2f}×", f"{miss.measured:.2f}×"]
        for miss in summary.misses
    ]
    table = _table(["missed", "predicted", "measured"], rows)
    return f"{words}<details><summary>The others</summary>{table}</details>"


def _autos(autos: Sequence[Auto]) -> str:
    if not autos:
        return ""
    words = (
        "<p><b>Automatic K.</b> Its tokens per second over those of the fastest fixed K, plain "
        "decoding included; and the task group with the lowest ratio to plain decoding. The "
        "fastest K is chosen on these same runs, so noise favours it.</p>"
    )
    rows = [
        [
            f"{series_of(auto.cell).label}, {setting_of(auto.cell).words}",
            f"{auto.against_best:.2f}×",
            length_words(auto.best),
            *_lowest(auto),
        ]
        for auto in autos
    ]
    head = ["drafter", "against the fastest", "which is", "lowest ratio", "in"]
    return words + _table(head, rows)


def _lowest(auto: Auto) -> tuple[str, str]:
    if auto.lowest is None:
        return "–", "–"
    return f"{auto.by_group[auto.lowest]:.2f}×", GROUPS.get(auto.lowest, auto.lowest)


def _replay(summary: Summary) -> str:
    worst = summary.worst_replay
    if worst is None:
        return ""
    return (
        f"<p><b>Replay.</b> Fed the accepted lengths of each of {len(summary.replays)} cells, the "
        f"simulator gives back the tokens per round that were measured within {worst.error:.1%}; "
        f"it is furthest off for {escape(cell_words(worst.cell))}.</p>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(value)}</td>" for value in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
