"""The headline of the report: whether speculation pays, and with which setting; checks of claims.

The words rest on `Results.gain`: the fastest cell, chosen on other prompts than it is measured on.
Where its 95% interval contains 1 the answer is "not clear", and that comes first.  The checks are
of predictions, of the automatic draft length, and of the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from forerun.measure.figures import Figures
from forerun.measure.held_out import FEWEST_PROMPTS, Answer, Gain
from forerun.measure.naming import Setting, cell_words, length_words, series_of, setting_of
from forerun.measure.plots.results import Results, listed
from forerun.measure.records import Interval
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


def headline(results: Results) -> str:
    """One line per answer over all settings; what is not clear comes first."""
    gains = {setting: results.gain(setting) for setting in results.settings}
    known = {setting: gain for setting, gain in gains.items() if gain is not None}
    if not known:
        return "Nothing to compare with plain decoding yet."
    sentences = []
    for answer in (Answer.NOT_CLEAR, Answer.YES, Answer.NO):
        settings = [setting for setting, gain in known.items() if gain.answer == answer]
        if settings:
            is_all = len(settings) == len(known)
            where = "" if is_all else " at " + listed([setting.words for setting in settings])
            sentences.append(_sentence(answer, where, [known[setting] for setting in settings]))
    return "\n".join(sentences)


def _sentence(answer: Answer, where: str, gains: list[Gain]) -> str:
    if answer is Answer.YES:
        return f"Yes{where}: {_range(gains)} the speed of plain decoding."
    if answer is Answer.NO:
        return f"No{where}: plain decoding is faster."
    if min(gain.num_prompts for gain in gains) < FEWEST_PROMPTS:
        return f"Not clear{where}: fewer than {FEWEST_PROMPTS} prompts were measured."
    contain = "the interval contains" if len(gains) == 1 else "the intervals contain"
    return f"Not clear{where}: {_range(gains)} the speed of plain decoding, and {contain} 1."


def _range(gains: list[Gain]) -> str:
    ends = sorted({f"{gain.speedup.mean:.2f}" for gain in gains}, key=float)
    return " to ".join(dict.fromkeys((ends[0], ends[-1]))) + "×"


def tiles(results: Results) -> str:
    """Key figures of the first setting, and the share of texts equal to plain decoding."""
    setting = results.settings[0]
    best, plain, gain = results.winner(setting), results.plain(setting), results.gain(setting)
    numbers: list[tuple[str, str, str]] = []
    if gain is not None:
        note = f"{_interval(gain.speedup)}; {setting.words}; chosen on other prompts"
        if gain.answer is Answer.NOT_CLEAR:
            note = f"not clear: {note}"
        numbers.append(("speed-up", f"{gain.speedup.mean:.2f}×", note))
    if best is not None:
        speed = f"{best.tokens_per_second.mean:.1f}"
        beside = f"plain decoding: {plain.tokens_per_second.mean:.1f}" if plain else "no plain run"
        numbers.append(("tokens per second", speed, f"{_what(best)}; {beside}"))
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


def advice(results: Results, setting: Setting) -> str:
    """What to do in one setting."""
    best, gain = results.winner(setting), results.gain(setting)
    if best is None or best.speedup is None:
        return "Plain decoding was not measured here, so there is nothing to compare with."
    if gain is None:
        return "Not clear: one batch of prompts says nothing about others. Measure more prompts."
    found = f"{gain.speedup.mean:.2f}× plain decoding (95%: {_interval(gain.speedup)})"
    if gain.answer is Answer.NO:
        return (
            f"Do not speculate here. The fastest of {gain.num_cells} cells, {_what(best)}, has "
            f"{found} on prompts it was not chosen on."
        )
    if gain.answer is Answer.NOT_CLEAR:
        few = gain.num_prompts < FEWEST_PROMPTS
        why = f"{gain.num_prompts} prompts are too few" if few else "the interval contains 1"
        return (
            f"Not clear: {why}. The fastest of {gain.num_cells} cells, {_what(best)}, has {found} "
            "on prompts it was not chosen on. Measure more prompts, or use plain decoding."
        )
    return (
        f"Use {_what(best)}. Expect {found} on other prompts of this kind; as the fastest of "
        f"{gain.num_cells} cells it has {best.speedup.mean:.2f}× on the prompts it was chosen on."
    )


def _what(best: Figures) -> str:
    return f"{series_of(best.cell).label} with {length_words(best.cell)}"


def _interval(value: Interval) -> str:
    return f"{value.low:.2f} to {value.high:.2f}"
