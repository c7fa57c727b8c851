"""The README's picture: commands run in a real terminal, and what they printed, as an SVG.

    python scripts/terminal.py record      # runs the commands; writes docs/terminal.json
    python scripts/terminal.py draw        # draws docs/terminal.svg from that file

The picture follows the reader's choice of light or dark.  Lines are broken between words and some
output may be left out; nothing else is changed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "docs" / "terminal.json"
PICTURE = ROOT / "docs" / "terminal.svg"

COLUMNS = 104
COMMANDS: dict[str, dict[str, str | None]] = {
    "forerun demo": {"A sum:": None},
    "forerun certify --quick": {"✓ lenient": "5 lossless rules"},
}
"""What is run, and which lines are left out: from one that begins so, to one that begins so."""
CELL, LINE, MARGIN, BAR = 8.4, 20, 22, 38  # pixels: a column, a row, the border, the title bar

STYLE = """
.ground { fill: #fcfcfb; stroke: #d5d5da; } .bar { fill: #ececef; } .dot { fill: #c6c6cc; }
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
  fill: #1b1c1f; white-space: pre; }
.soft { fill: #6a6d75; } .command { font-weight: 700; }
.blue { fill: #0067b8; } .green { fill: #00805d; }
.orange { fill: #a85400; text-decoration: underline; } .red { fill: #c0322b; }
@media (prefers-color-scheme: dark) {
  .ground { fill: #14161a; stroke: #363a42; } .bar { fill: #23262c; } .dot { fill: #474c56; }
  text { fill: #e9e9ec; } .soft { fill: #9aa0aa; }
  .blue { fill: #5db2f5; } .green { fill: #3ac79b; }
  .orange { fill: #f5a742; } .red { fill: #ff7b72; }
}
"""
CLASSES = {"33": "blue", "172": "orange", "32": "green", "31": "red"}


@dataclass(frozen=True)
class Span:
    """Characters of one line in one colour."""

    text: str
    colour: str = ""


def record() -> dict[str, Any]:
    """Run each command in a terminal of its own."""
    from forerun.measure.machine import this_machine

    steps = [
        {"command": command, "left_out": left_out, "output": _typed(command)}
        for command, left_out in COMMANDS.items()
    ]
    machine = this_machine(command="python scripts/terminal.py record")
    return {"machine": asdict(machine), "steps": steps}


def _typed(command: str) -> str:
    """What a command writes to a terminal of 24 lines, standard error included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    process = subprocess.Popen(
        shlex.split(command),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"PATH": path, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            written += (part := os.read(ours, 1 << 16))
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
    os.close(ours)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed:\n{written.decode(errors='replace')}")
    return written.decode().replace("\r\n", "\n")


def draw(recording: dict[str, Any]) -> str:
    """The recording as an SVG."""
    rows: list[list[Span]] = []
    for step in recording["steps"]:
        rows += [[]] if rows else []
        rows.append([Span("$ ", "soft"), Span(step["command"], "command")])
        for line in _shown(_lines(step["output"]), step["left_out"]):
            rows += _wrapped(line)
    width = COLUMNS * CELL + 2 * MARGIN
    height = len(rows) * LINE + BAR + 2 * MARGIN - 8
    texts = "\n".join(
        _row(row, BAR + MARGIN + LINE * number + 6) for number, row in enumerate(rows) if row
    )
    dots = "".join(f'<circle class="dot" cx="{22 + 20 * i}" cy="19" r="6"/>' for i in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" '
        f'aria-label="Forerun in a terminal">\n<style>{STYLE}</style>\n'
        f'<rect class="ground" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1}" '
        f'rx="10"/>\n<path class="bar" d="M1 38V10.5Q1 1 10.5 1H{width - 10.5:g}'
        f'Q{width - 1:g} 1 {width - 1:g} 10.5V38Z"/>\n{dots}\n{texts}\n</svg>\n'
    )


def _lines(output: str) -> Iterator[list[Span]]:
    """Lines as a terminal leaves them: what was overwritten from the first column is gone."""
    for line in output.rstrip("\n").split("\n"):
        left = [part for part in line.split("\r") if part.strip()]
        spans, colour = [], ""
        for code, text in re.findall(r"\x1b\[([\d;]*)m|([^\x1b]+)", left[-1] if left else ""):
            if text:
                spans.append(Span(text, colour))
            else:
                colour = next((CLASSES[part] for part in code.split(";") if part in CLASSES), "")
        yield spans


def _shown(lines: Iterator[list[Span]], left_out: dict[str, str | None]) -> Iterator[list[Span]]:
    """The lines without those that are left out, for which an ellipsis stands."""
    for line in lines:
        text = "".join(span.text for span in line)
        begin = next((start for start in left_out if text.startswith(start)), None)
        if begin is None:
            yield line
            continue
        yield [Span("...", "soft")]
        end = left_out[begin]
        before = line
        for line in lines:
            if end is not None and "".join(span.text for span in line).startswith(end):
                yield from [line] if before else [[], line]
                break
            before = line


def _wrapped(line: list[Span]) -> Iterator[list[Span]]:
    """The line in rows of at most COLUMNS columns, broken at spaces where there are any."""
    row: list[Span] = []
    free = COLUMNS
    for span in line:
        for word in re.findall(r" *[^ ]+| +$", span.text):
            if len(word) > free and row:
                yield row
                row, free, word = [], COLUMNS, word.lstrip()
            row.append(Span(word, span.colour))
            free -= len(word)
    yield row


def _row(row: list[Span], y: float) -> str:
    """One <text> element; every word is put on its column, so that any font keeps the grid."""
    parts, column = [], 0
    for span in row:
        word = span.text.strip(" ") if span.colour != "command" else span.text
        lead = len(span.text) - len(span.text.lstrip(" "))
        if word:
            x = MARGIN + (column + lead) * CELL
            name = f' class="{span.colour}"' if span.colour else ""
            size = f' textLength="{len(word) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
            parts.append(f'<tspan x="{x:.1f}"{name}{size}>{escape(word)}</tspan>')
        column += len(span.text)
    return f'<text y="{y:g}">{"".join(parts)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("step", choices=("record", "draw"))
    if parser.parse_args().step == "record":
        text = json.dumps(record(), indent=1, ensure_ascii=False)
        RECORDING.write_text(text + "\n", encoding="utf-8")
    PICTURE.write_text(draw(json.loads(RECORDING.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
