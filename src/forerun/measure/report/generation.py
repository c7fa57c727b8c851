"""One generation token by token: fate in colour, probability in its depth, both on hovering."""

from __future__ import annotations

from html import escape

from forerun.measure.naming import length_words, series_of, temperature_words
from forerun.measure.records import Sample, Token

FATES = {
    "accepted": "accepted from the draft",
    "correction": "correction of a wrong guess",
    "bonus": "bonus token of the target",
}


def generation(sample: Sample) -> str:
    accepted = sum(token.fate == "accepted" for token in sample.tokens)
    cell = sample.cell
    how = f"{series_of(cell).label}, {length_words(cell)}, {temperature_words(cell.temperature)}"
    legend = "".join(
        f'<span class="token {fate}" style="--p:1">{escape(words)}</span>'
        for fate, words in FATES.items()
    )
    prompt = escape(sample.prompt_text)
    tokens = "".join(_token(number, token) for number, token in enumerate(sample.tokens, start=1))
    return (
        f'<p class="reading">{escape(how)}: {accepted} of {len(sample.tokens)} tokens came from '
        "the draft. The paler a token, the less probable it was under the target; rest "
        f'the pointer on it for the number.</p><p class="legend">{legend}</p>'
        f'<details class="prompt"><summary>The prompt</summary><p>{prompt}</p></details>'
        f'<p class="generation">{tokens}</p>'
    )


def _token(number: int, token: Token) -> str:
    """Line breaks stay visible, since they are tokens like any other."""
    text = escape(token.text).replace("\n", '<span class="break">↵</span>\n')
    words = f"{number}: {FATES.get(token.fate, token.fate)}, probability {token.probability:.1%}"
    return (
        f'<span class="token {escape(token.fate)}" style="--p:{token.probability:.3f}" '
        f'title="{escape(words)}">{text}</span>'
    )
