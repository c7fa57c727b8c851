"""Key figures of a report, and what it checks: predictions, the automatic draft length, and the
simulator."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from forerun.measure.held_out import Answer
from forerun.measure.naming import cell_words, length_words, series_of, setting_of
from forerun.measure.results import Results
from forerun.measure.summary import CLOSE, Auto, Summary
from forerun.measure.verdict import ends_of, name_of
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


def tiles(results: Results) -> str:
    """Key figures of the first setting, and the share of texts equal to plain decoding."""
    setting = results.settings[0]
    best, plain, gain = results.winner(setting), results.plain(setting), results.gain(setting)
    numbers: list[tuple[str, str, str]] = []
    if gain is not None:
        note = f"{ends_of(gain.speedup)}; {setting.words}; chosen on other prompts"
        if gain.answer is Answer.NOT_CLEAR:
            note = f"not clear: {note}"
        numbers.append(("speed-up", f"{gain.speedup.mean:.2f}×", note))
    if best is not None:
        speed = f"{best.tokens_per_second.mean:.1f}"
        beside = f"plain decoding: {plain.tokens_per_second.mean:.1f}" if plain else "no plain run"
        numbers.append(("tokens per second", speed, f"{name_of(best)}; {beside}"))
        rate = f"{best.acceptance_rate.mean:.0%} of drafts accepted"
        numbers.append(("tokens per round", f"{best.tokens_per_round.mean:.2f}", rate))
    same, compared = results.same_text
    if compared:
        share = "all" if same == compared else f"{same / compared:.1%}"
        note = f"{same:,} of {compared:,} answers equal plain decoding's"
        numbers.append(("same text", share, note))
    return "".join(
        f'<div class="tile"><div class="name">{escape(name)}</div>'
        f'<div class="value">{escape(value)}</div><div class="note">{escape(note)}</div></div>'
        for name, value, note in numbers
    )
