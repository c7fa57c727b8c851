"""Speed and acceptance against draft length, and acceptance by position in the draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.base.drawing import GREY, canvas, points, ticker
from forerun.measure.figures import Figures
from forerun.measure.held_out import Answer
from forerun.measure.naming import Setting, length_words, series_of
from forerun.measure.plots.plot import WIDTH, Plot, label_ends, look, whisker
from forerun.measure.results import Results, shares_in_words

READING = (
    "The share of drafts accepted at each position, of those that were reached: all before them "
    "had been accepted. From the longest fixed K of each drafter, as far as at least 30 rounds "
    "reached. A level line means that longer drafts keep paying; a falling one, that they do not."
)
ENOUGH = 30


def by_position(results: Results, setting: Setting) -> Plot | None:
    """Draw the acceptance at each position of the draft, one line per drafter; None where there is
    nothing to draw."""
    rows = results.longest(setting)
    if not rows:
        return None
    firsts = {series_of(figures.cell).label: figures.acceptance_by_position[0] for figures in rows}
    with canvas(WIDTH, 4.2) as figure:
        title = f"First guesses that hold: {shares_in_words(firsts)}"
        plot = Plot("by_position", setting, title, READING, figure)
        axes = figure.subplots()
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))
        longest = max(len(figures.acceptance_by_position) for figures in rows)
        axes.set_xlim(0.6, longest + 0.4)
        axes.set_xticks(range(1, longest + 1, 1 + longest // 13))
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("accepted, once reached")
        label_ends(axes, [_line(plot, axes, results, figures) for figures in rows])
    return plot


def _line(plot: Plot, axes: Any, results: Results, figures: Figures) -> tuple[float, str, str]:
    """Draw one drafter; returns the height of the line's end, its name and its colour."""
    series = series_of(figures.cell)
    style, reached = look(results, series), results.reached_by_position(figures.cell)
    shown = max(1, sum(count >= ENOUGH for count in reached))  # reached falls along the draft
    rates = figures.acceptance_by_position[:shown]
    axes.plot(range(1, shown + 1), rates, **{**style, "marker": None})
    for x, (rate, count) in enumerate(zip(rates, reached[:shown], strict=True), start=1):
        (mark,) = axes.plot([x], [rate], **style)
        words = f"position {x}: {rate:.0%} of {count:,} accepted"
        plot.tip(mark, f"{series.label}, {length_words(figures.cell)}, {words}")
    return rates[-1], series.label, style["color"]


PANELS = (
    ("tokens_per_second", "tokens per second", "{:.1f} tokens/s"),
    ("acceptance_rate", "acceptance rate", "{:.0%} of drafts accepted"),
)


def by_draft_length(results: Results, setting: Setting) -> Plot | None:
    """Draw speed and acceptance against the draft length, one line per drafter; None where there is
    nothing to draw."""
    if not results.series(setting):
        return None
    lines = [results.fixed(setting, series) for series in results.series(setting)]
    count = 1 + any(map(_tells_drafts, lines))
    with canvas(WIDTH, 5.9 if count == 2 else 3.9) as figure:
        plot = Plot("by_draft_length", setting, _title(results, setting), _READING, figure)
        every = figure.subplots(count, sharex=True, squeeze=False, height_ratios=[3, 2][:count])
        for axes, (name, label, words) in zip(every[:, 0], PANELS, strict=False):
            _panel(plot, axes, results, setting, name, words)
            axes.set_ylabel(label)
        bottom = every[-1, 0]
        _ticks(bottom, results, setting)
        if count == 2:
            bottom.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
        bottom.set_xlabel("draft length K")
        figure.align_ylabels()
    return plot


_READING = (
    "Above: what the whole batch writes per second, the prompt left out. Below: the share of "
    "drafted tokens that were kept. Upright lines are 95% intervals over prompts; the large "
    "mark is the fastest K of each drafter; auto chooses K anew in every round."
)


def _title(results: Results, setting: Setting) -> str:
    """A title with the gain on held-out prompts, because the fastest of many cells promises too
    much."""
    best, gain = results.winner(setting), results.gain(setting)
    if best is None:
        return "Only a peer was measured here"
    what = f"{series_of(best.cell).label} with {length_words(best.cell)}"
    if gain is None:
        return f"Fastest: {what}, {best.tokens_per_second.mean:.1f} tokens per second"
    if gain.answer is Answer.NO:
        return f"Do not speculate: even {what} is slower than plain decoding"
    if gain.answer is Answer.NOT_CLEAR:
        return f"Not clear whether {what}, the fastest, pays"
    return f"Fastest: {what}; expect {gain.speedup.mean:.2f}× plain"


def _panel(
    plot: Plot, axes: Any, results: Results, setting: Setting, name: str, words: str
) -> None:
    ends = []
    place, shown = _place_of_auto(results, setting), results.series(setting)
    for number, series in enumerate(shown):
        style = look(results, series)
        colour, line = style["color"], results.fixed(setting, series)
        if name == "acceptance_rate" and not _tells_drafts(line):
            continue
        aside = (number - (len(shown) - 1) / 2) * min(0.12, 0.5 / len(shown))  # apart from others
        xs = [int(figures.cell.draft_length) + aside for figures in line]
        axes.plot(xs, [getattr(value, name).mean for value in line], **{**style, "marker": None})
        placed = list(zip(xs, line, strict=True))
        if (auto := results.auto(setting, series)) is not None:
            placed.append((place + aside, auto))
        best = results.best_fixed(setting, series)
        for x, figures in placed:
            large = figures is best and len(line) > 1 and name == "tokens_per_second"
            _point(
                plot,
                axes,
                x,
                figures,
                name,
                words,
                style | {"markersize": points(9.5 if large else 5.5)},
            )
        ends.append((getattr(placed[-1][1], name).mean, series.label, colour))
    if name == "tokens_per_second":
        for peer in dict.fromkeys([None, *(other.peer for other in results.series(setting))]):
            if (plain := results.plain(setting, peer)) is not None:
                speed = plain.tokens_per_second.mean
                axes.axhline(
                    speed, color=GREY, linestyle="--" if peer else "-", linewidth=points(1.4)
                )
                ends.append((speed, f"plain ({peer})" if peer else "plain", GREY))
    else:
        axes.set_ylim(bottom=0)
    label_ends(axes, ends)


def _point(
    plot: Plot, axes: Any, x: float, figures: Figures, name: str, words: str, style: dict[str, Any]
) -> None:
    value = getattr(figures, name)
    whisker(axes, x, value, style["color"])
    (mark,) = axes.plot([x], [value.mean], **style)
    label = f"{series_of(figures.cell).label}, {length_words(figures.cell)}"
    figure, low, high = (words.format(v) for v in (value.mean, value.low, value.high))
    plot.tip(mark, f"{label}: {figure} ({low.split(' ')[0]} to {high.split(' ')[0]})")


def _tells_drafts(line: Sequence[Figures]) -> bool:
    """Whether the line has an acceptance rate; a peer does not tell what it drafted."""
    return any(figures.acceptance_by_position for figures in line)


def _place_of_auto(results: Results, setting: Setting) -> int:
    lines = [results.fixed(setting, series) for series in results.series(setting)]
    return 1 + max(
        (int(figures.cell.draft_length) for line in lines for figures in line), default=0
    )


def _ticks(axes: Any, results: Results, setting: Setting) -> None:
    place = _place_of_auto(results, setting)
    lines = [results.fixed(setting, series) for series in results.series(setting)]
    least = min((int(one.cell.draft_length) for line in lines for one in line), default=1)
    ticks = list(range(least, place, 1 + place // 13))
    labels = [str(tick) for tick in ticks]
    if any(results.auto(setting, series) for series in results.series(setting)):
        ticks, labels = [*ticks, place], [*labels, "auto"]
    axes.set_xticks(ticks, labels)
    axes.set_xlim(ticks[0] - 0.4, ticks[-1] + 0.4)
