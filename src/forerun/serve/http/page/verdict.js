// Two runs of the same messages and seed: is the text the same, and what did speculation gain?

import { make } from "./dom.js";

const CONTEXT = 24; // characters shown on either side of a difference

// The number of characters (code points) that agree from the start, and both lengths.
export function compareTexts(one, other) {
  const first = Array.from(one);
  const second = Array.from(other);
  const shorter = Math.min(first.length, second.length);
  let same = 0;
  while (same < shorter && first[same] === second[same]) same += 1;
  return { same, first, second, isPrefix: same === shorter, isSame: first.length === second.length && same === shorter };
}

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

export function progressWords(reference, rerun) {
  const { same, first, isPrefix } = compareTexts(reference.text, rerun.text);
  if (!isPrefix) return `The texts differ from character ${same + 1}.`;
  return `Comparing: ${same.toLocaleString("en")} of ${count(first.length, "character")} identical so far.`;
}

export function verdict(reference, rerun, seed) {
  const compared = compareTexts(reference.text, rerun.text);
  const [fast, plain] = reference.speculates ? [reference, rerun] : [rerun, reference];
  const box = make("section", { class: "verdict", "aria-label": "Comparison" });
  if (compared.isSame && compared.first.length > 0) {
    box.classList.add("same");
    box.append(...sameText(compared, fast, plain, seed));
  } else if (compared.isPrefix && !(reference.isComplete && rerun.isComplete)) {
    box.append(make("h3", {}, `Identical as far as both go: ${count(compared.same, "character")}.`));
    box.append(make("p", { class: "soft" }, "One of the two runs was ended early. Run it again to the end to compare the whole."));
  } else {
    box.classList.add("differs");
    box.append(...otherText(compared, fast));
  }
  if (fast.numTokens && plain.numTokens) box.append(gains(fast, plain));
  if (rerun.numReused > reference.numReused) {
    const words = `The second run found ${rerun.numReused} tokens of the prompt already read, hence its first token.`;
    box.append(make("p", { class: "soft" }, words));
  }
  if (!reference.speculates) {
    box.append(make("p", { class: "soft" }, "The second run speculated: a drafter that remembers texts had already seen this one."));
  }
  return box;
}

function sameText({ same }, fast, plain, seed) {
  const words = `All ${count(same, "character")} identical, compared one by one. Seed ${seed}.`;
  const parts = [make("h3", {}, make("b", {}, "Same text"), "."), make("p", { class: "soft" }, words)];
  if (!fast.tokensPerSecond || !plain.tokensPerSecond) return parts;
  const measured = fast.tokensPerSecond / plain.tokensPerSecond;
  const most = plain.rounds / fast.rounds; // a pass over guesses takes at least as long as one without
  parts[0].lastChild.data = speedWords(Math.min(measured, most));
  if (measured > 1.1 * most) {
    const noise = `The times say ${measured.toFixed(1)}, more than so many passes can save: the machine was busier during the other run.`;
    parts.push(make("p", { class: "soft" }, noise));
  }
  return parts;
}

function speedWords(gain) {
  if (gain >= 1.05) return `, ${gain.toFixed(1)} times as fast.`;
  if (gain < 0.95) return `, but ${gain.toFixed(2)} of the speed: here speculation cost time.`;
  return ", at the same speed.";
}

function otherText({ same, first, second }, fast) {
  const piece = (text, start, end) => text.slice(Math.max(0, start), end).join("").replaceAll("\n", "↵");
  const around = (name, text) => {
    const mark = make("mark", {}, piece(text, same, same + 1) || "end");
    const line = make("code", {}, piece(text, same - CONTEXT, same), mark, piece(text, same + 1, same + CONTEXT));
    return make("p", {}, make("span", { class: "soft" }, name), line);
  };
  const why =
    fast.rule === "match"
      ? "Under the rule “match” that happens only where two tokens are as good as tied and rounding breaks the tie; forerun doctor says which."
      : `The rule “${fast.rule}” does not promise the same text for a seed; “match” does.`;
  return [
    make("h3", {}, `The texts differ from character ${same + 1}.`),
    around("first run", first),
    around("second run", second),
    make("p", { class: "soft" }, why),
  ];
}

const seconds = (x) => `${x.toFixed(x < 9.95 ? 2 : 1)} s`;
const MEASURES = [
  ["Passes of the model", (run) => run.rounds, (x) => x.toLocaleString("en")],
  ["To the first token", (run) => run.secondsToFirst, seconds],
  ["First to last token", (run) => run.secondsAfterFirst, seconds],
  ["Tokens per second", (run) => run.tokensPerSecond, (x) => x.toFixed(1)],
];

function gains(fast, plain) {
  const head = make("tr", {}, make("td"), ...["With speculation", "Without"].map((words) => make("th", { scope: "col" }, words)));
  const rows = MEASURES.map(([name, read, words]) => {
    const values = [read(fast), read(plain)];
    const highest = Math.max(...values.map((value) => value ?? 0), 1e-9);
    const cells = values.map((value, i) => {
      const bar = make("i", { class: i === 0 ? "fast" : "plain", "aria-hidden": "true" });
      bar.style.setProperty("--share", (value ?? 0) / highest);
      return make("td", {}, make("span", {}, value === null ? "–" : words(value)), bar);
    });
    return make("tr", {}, make("th", { scope: "row" }, name), ...cells);
  });
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}
