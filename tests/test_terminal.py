"""The README's picture is drawn from its recording, and shows what a terminal would show."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def terminal() -> Any:
    spec = importlib.util.spec_from_file_location("terminal", ROOT / "scripts" / "terminal.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["terminal"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_that_of_the_recording(terminal: Any) -> None:
    recording = json.loads(terminal.RECORDING.read_text(encoding="utf-8"))
    assert terminal.PICTURE.read_text(encoding="utf-8") == terminal.draw(recording)
    assert recording["machine"]["cores"] >= 1


def test_overwritten_text_is_gone_and_colours_stay(terminal: Any) -> None:
    painted = "\x1b[38;5;33mblue\x1b[0m & \x1b[4;38;5;172mwrong\x1b[0m"
    output = f"Loading ...\r           \r{painted}\nfrom here\nhidden\nto here\nmore\nhidden"
    left_out = {"from": "to", "more": None}
    step = {"command": "forerun <x>", "left_out": left_out, "output": output}
    svg = terminal.draw({"steps": [step]})
    texts = [
        "".join(row.itertext())
        for row in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert texts == ["$forerun <x>", "blue&wrong", "...", "tohere", "..."]
    assert re.findall(r'class="(\w+)" textLength="[\d.]+" [^>]*>(\w+)<', svg) == [
        ("blue", "blue"),
        ("orange", "wrong"),
    ]


def test_long_lines_break_between_words(terminal: Any) -> None:
    line = [terminal.Span("word " * 45)]
    rows = list(terminal._wrapped(line))
    widths = [sum(len(span.text) for span in row) for row in rows]
    assert len(rows) == 3
    assert max(widths) <= terminal.COLUMNS
    shown = " ".join("".join(span.text for span in row) for row in rows)
    assert shown.split() == ["word"] * 45
