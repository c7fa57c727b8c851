"""The headline of the report: whether speculation pays, and with which setting."""

from __future__ import annotations

from html import escape

from forerun.measure.figures import Figures
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.plots.results import Results, listed


def headline(results: Results) -> str:
    """One sentence over all settings."""
    gains = {setting: _gain(results.winner(setting)) for setting in results.settings}
    known = {setting: gain for setting, gain in gains.items() if gain is not None}
    if not known:
        return "Nothing to compare with plain decoding yet."
    paying = [setting for setting, gain in known.items() if gain > 1]
    if not paying:
        return "No: plain decoding is the fastest in every setting measured."
    low, high = min(known[setting] for setting in paying), max(known[setting] for setting in paying)
    gain = f"{low:.2f}×" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}×"
    if len(paying) == len(known):
        return f"Yes: {gain} the speed of plain decoding."
    where = listed([setting.words for setting in paying])
    return f"Sometimes: {gain} the speed of plain decoding at {where}; elsewhere it does not pay."


def tiles(results: Results) -> str:
    """Key figures of the first setting, and the share of texts equal to plain decoding."""
    setting = results.settings[0]
    best, plain = results.winner(setting), results.plain(setting)
    numbers: list[tuple[str, str, str]] = []
    if best is not None and best.speedup is not None:
        what = f"{series_of(best.cell).label}, {length_words(best.cell)}"
        low, high = best.speedup.low, best.speedup.high
        note = f"{what}; {setting.words}; {low:.2f} to {high:.2f}"
        numbers.append(("speed-up", f"{best.speedup.mean:.2f}×", note))
    if best is not None:
        speed = f"{best.tokens_per_second.mean:.1f}"
        beside = f"plain decoding: {plain.tokens_per_second.mean:.1f}" if plain else "no plain run"
        numbers.append(("tokens per second", speed, beside))
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
    best = results.winner(setting)
    gain = _gain(best)
    if best is None or best.speedup is None or gain is None:
        return "Plain decoding was not measured here, so there is nothing to compare with."
    what = f"{series_of(best.cell).label} with {length_words(best.cell)}"
    interval = f"{best.speedup.low:.2f} to {best.speedup.high:.2f}"
    if gain <= 1:
        return f"Do not speculate here. The best try, {what}, has {gain:.2f}× ({interval})."
    sure = "" if best.speedup.low > 1 else " Other prompts may turn this around."
    return f"Use {what}: {gain:.2f}× plain decoding ({interval}).{sure}"


def _gain(best: Figures | None) -> float | None:
    return None if best is None or best.speedup is None else best.speedup.mean
