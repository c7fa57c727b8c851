"""Whether the texts of the page stand out from what is behind them."""

from __future__ import annotations

import json

from chromium import Tab

READ = (
    "#model",
    "#gauges dt",
    ".legend li",
    ".asked",
    ".answer .accepted",
    ".answer .bonus",
    ".facts",
    ".verdict h3",
    ".verdict .soft",
    ".verdict th",
    ".again",
    ".switch",
)
CONTRASTS = """
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const luminance = (colours) => {  // of the last over the others, as WCAG 2 defines it
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    const rgb = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((x) => x / 255);
    const [r, g, b] = rgb.map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const grounds = (element) => {
    const colours = [];
    for (let e = element; e; e = e.parentElement) {
      colours.unshift(getComputedStyle(e).backgroundColor);
    }
    return colours;
  };
  const found = {ground: luminance(grounds(document.body))};
  for (const selector of READ) {
    const element = document.querySelector(selector);
    const under = grounds(element), ink = getComputedStyle(element).color;
    const [low, high] = [luminance(under), luminance([...under, ink])].sort((a, b) => a - b);
    found[selector] = (high + 0.05) / (low + 0.05);
  }
  return found;
})()
""".replace("READ", json.dumps(READ))


def check_contrasts(tab: Tab, scheme: str) -> None:
    """Every text can be read: 4.5 to 1 is what WCAG 2 asks for."""
    found = tab.ask(CONTRASTS)
    assert (found.pop("ground") > 0.5) == (scheme == "light")
    assert set(found) == set(READ)
    assert min(found.values()) >= 4.5, found
