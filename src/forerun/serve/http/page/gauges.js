// What the server is doing, once a second, each figure with its last minute behind it.

import { apiKey, readJson } from "./api.js";
import { byId, make, makeSvg } from "./dom.js";

const MINUTE = 60; // samples
const GAUGES = [
  { key: "tokens_per_second", name: "tokens/s", words: (x) => x.toFixed(x < 9.95 ? 1 : 0) },
  { key: "acceptance_rate", name: "accepted", words: (x) => `${Math.round(100 * x)}%`, top: 1 },
  { key: "mean_draft_length", name: "draft length", short: "draft", words: (x) => x.toFixed(1) },
  { key: "running", name: "batch", words: (x) => String(x) },
];

export function startGauges() {
  const tiles = GAUGES.map(makeTile);
  byId("gauges").append(...tiles.map((tile) => tile.element));
  let refusedKey = null; // is not tried a second time
  const tick = async () => {
    if (!document.hidden && apiKey() !== refusedKey) {
      const key = apiKey();
      const stats = await readJson("v1/stats").catch((problem) => {
        if (problem.status === 401) refusedKey = key;
        return null;
      });
      byId("gauges").classList.toggle("stale", stats === null);
      for (const tile of tiles) tile.show(stats);
    }
    setTimeout(tick, 1000);
  };
  tick();
}

function makeTile({ key, name, short, words, top }) {
  const value = make("dd", { "data-gauge": key }, "–");
  const note = make("small");
  const line = makeSvg("polyline", { fill: "none", "vector-effect": "non-scaling-stroke" });
  const picture = makeSvg("svg", { viewBox: "0 0 59 20", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  const element = make("div", {}, make("dt", { "data-short": short ?? name }, make("span", {}, name), note), value, picture);
  const past = [];
  const show = (stats) => {
    const now = stats?.[key] ?? null;
    value.textContent = now === null ? "–" : words(now);
    if (key === "running") note.textContent = stats?.waiting ? ` · ${stats.waiting} waiting` : "";
    past.push(now ?? 0);
    if (past.length > MINUTE) past.shift();
    const highest = top ?? Math.max(...past, 1e-9);
    const start = MINUTE - past.length;
    line.setAttribute("points", past.map((x, i) => `${start + i},${19 - (18 * x) / highest}`).join(" "));
  };
  return { element, show };
}
