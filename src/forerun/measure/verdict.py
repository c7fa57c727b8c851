"""Says in sentences, for the shell and the report, whether speculation pays according to a sweep.

They rest on `Results.gain`: the fastest cell, chosen on other prompts than it is measured on.
Where its 95% interval contains 1, or prompts are few, the answer is "not clear", and that comes
first.
"""

from __future__ import annotations

from forerun.measure.figures import Figures
from forerun.measure.held_out import FEWEST_PROMPTS, Answer, Gain
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.records import Interval
from forerun.measure.results import Results, listed


def headline(results: Results) -> str:
    """The verdict over all settings, one line for each answer; unclear ones come first."""
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


def advice(results: Results, setting: Setting) -> str:
    """A sentence on what to do in one setting."""
    best, gain = results.winner(setting), results.gain(setting)
    if best is None or best.speedup is None:
        return "Plain decoding was not measured here, so there is nothing to compare with."
    if gain is None:
        return "Not clear: one batch of prompts says nothing about others. Measure more prompts."
    found = f"{gain.speedup.mean:.2f}× plain decoding (95%: {ends_of(gain.speedup)})"
    if gain.answer is Answer.NO:
        return (
            f"Do not speculate here. The fastest of {gain.num_cells} cells, {name_of(best)}, has "
            f"{found} on prompts it was not chosen on."
        )
    if gain.answer is Answer.NOT_CLEAR:
        few = gain.num_prompts < FEWEST_PROMPTS
        why = f"{gain.num_prompts} prompts are too few" if few else "the interval contains 1"
        return (
            f"Not clear: {why}. The fastest of {gain.num_cells} cells, {name_of(best)}, has "
            f"{found} on prompts it was not chosen on. Measure more prompts, or use plain decoding."
        )
    return (
        f"Use {name_of(best)}. Expect {found} on other prompts of this kind; as the fastest of "
        f"{gain.num_cells} cells it has {best.speedup.mean:.2f}× on the prompts it was chosen on."
    )


def name_of(best: Figures) -> str:
    """The name of a cell: its drafter and its draft length."""
    return f"{series_of(best.cell).label} with {length_words(best.cell)}"


def ends_of(value: Interval) -> str:
    """The ends of an interval of speed-ups, in words."""
    return f"{value.low:.2f} to {value.high:.2f}"
