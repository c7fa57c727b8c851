"""The report in a real browser: no errors on its console, and something drawn in every plot.

Chromium is driven by its own command line: `--dump-dom` prints the page after its scripts have run,
`--enable-logging=stderr` its console, `--screenshot` its picture.  That needs no package and no
driver.  What must be measured in the browser is measured by a script added to a copy of the page,
which writes what it found into the document.
"""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from made_up_sweep import sweep, write

from chromium import FLAGS, find_chromium
from forerun.cli import main

pytestmark = pytest.mark.browser

NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND"
COLOUR_SCHEMES = {"dark": 0, "light": 1}

MEASURE = """
<script>
addEventListener("load", () => {
  const plots = [...document.querySelectorAll("figure")].map((figure) => {
    const svg = figure.querySelector("svg"), frame = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll(".mark")].map((mark) => mark.getBoundingClientRect());
    const drawn = marks.filter((box) => box.width + box.height > 0 && box.left >= frame.left - 1 &&
      box.right <= frame.right + 1 && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1);
    const texts = [...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
    const outside = texts.filter((box) => box.left < frame.left - 2 || box.right > frame.right + 2);
    const fills = [...svg.querySelectorAll("text")].map((text) => getComputedStyle(text).fill);
    return {name: figure.dataset.plot, shown: frame.width > 0, width: frame.width,
      height: frame.height, marks: marks.length, drawn: drawn.length, outside: outside.length,
      colours: [...new Set(fills)]};
  });
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify({plots, wide});
  document.body.append(found);
});
</script>
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    return find_chromium()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    write(folder, sweep(lengths=(1, 3, "auto"), temperatures=(0.0,), per_group=1, repeats=1))
    assert main(["plot", str(folder)]) == 0
    return folder / "report.html"


def browse(chromium: str, page: Path, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """What the browser printed, and what was written on its console."""
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [chromium, *FLAGS, NO_NETWORK, profile, *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r":CONSOLE[:(]\d+\)?\] (.*)", done.stderr)


def measured(chromium: str, page: Path, folder: Path, *flags: str) -> dict[str, Any]:
    copy = folder / "measured.html"
    copy.write_text(page.read_text(encoding="utf-8") + MEASURE, encoding="utf-8")
    dom, console = browse(chromium, copy, folder, "--dump-dom", *flags)
    assert console == []
    found = re.search(r'<pre id="found">(.*?)</pre>', dom)
    assert found is not None, dom[-500:]
    result: dict[str, Any] = json.loads(unescape(found[1]))
    return result


@pytest.mark.parametrize("scheme", COLOUR_SCHEMES)
@pytest.mark.parametrize("width", [1280, 500])
def test_every_plot_shows_its_marks(
    chromium: str, page: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    flags = (f"--blink-settings=preferredColorScheme={COLOUR_SCHEMES[scheme]}",)
    found = measured(chromium, page, tmp_path, *flags, f"--window-size={width},2000")
    assert not found["wide"]  # nothing is to be scrolled sideways but tables in their boxes
    plots = {plot["name"]: plot for plot in found["plots"]}
    assert len(plots) == 12
    shown = [plot for plot in plots.values() if plot["shown"]]
    hidden = [plot["name"] for plot in plots.values() if not plot["shown"]]
    assert len(shown) == 7
    assert all("batch-4" in name for name in hidden)  # the first setting is the one to see
    for plot in shown:
        assert plot["drawn"] == plot["marks"] > 3, plot
        assert plot["outside"] == 0, plot
        assert plot["width"] > 300, plot
        assert plot["height"] > 150, plot
    soft = {"light": "rgb(93, 96, 104)", "dark": "rgb(169, 173, 182)"}[scheme]
    assert all(soft in plot["colours"] for plot in shown)


def test_the_switch_shows_another_setting(chromium: str, page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    press = '<script>document.querySelector("[value^=batch-4]").click()</script>'
    copy = tmp_path / "pressed.html"
    copy.write_text(text + press, encoding="utf-8")
    found = measured(chromium, copy, tmp_path)
    shown = [plot["name"] for plot in found["plots"] if plot["shown"]]
    assert any("batch-4" in name for name in shown)
    assert not any("batch-1" in name for name in shown)


def test_the_picture_follows_the_readers_colours(chromium: str, page: Path, tmp_path: Path) -> None:
    from matplotlib.image import imread

    for scheme, number in COLOUR_SCHEMES.items():
        picture = tmp_path / f"{scheme}.png"
        flags = (f"--blink-settings=preferredColorScheme={number}", "--window-size=1280,2000")
        _, console = browse(chromium, page, tmp_path, *flags, f"--screenshot={picture}")
        assert console == []
        pixels = imread(picture)[..., :3]
        is_light = pixels.mean() > 0.5
        assert is_light == (scheme == "light")
        blue = {"light": (0x00, 0x72, 0xB2), "dark": (0x58, 0xAE, 0xF0)}[scheme]
        near = abs(pixels - [channel / 255 for channel in blue]).max(axis=-1) < 0.06
        assert near.sum() > 500  # lines, marks and bars of the first drafter


def test_errors_on_the_console_are_seen(chromium: str, page: Path, tmp_path: Path) -> None:
    """The other tests mean something only if this one finds what was put there to be found."""
    for fault in ("throw new Error('seeded')", "fetch('https://example.invalid/')"):
        copy = tmp_path / "faulty.html"
        text = page.read_text(encoding="utf-8")
        copy.write_text(text + f"<script>{fault}</script>", encoding="utf-8")
        _, console = browse(chromium, copy, tmp_path, "--dump-dom", "--virtual-time-budget=2000")
        assert console, fault
