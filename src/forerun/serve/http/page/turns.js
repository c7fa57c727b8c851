// One message and its answer, or two answers side by side once it was run again.

import { copyText, make, makeButton } from "./dom.js";
import { hide } from "./inspector.js";
import { Run } from "./runs.js";
import { addToken, makeAnswer } from "./tokens.js";
import { progressWords, verdict } from "./verdict.js";

const withOrWithout = (speculates) => (speculates ? "With speculation" : "Without speculation");

export class Turn {
  // body: the request without `speculation`.  perform(turn, work) runs work with a signal, one at a time.
  constructor(message, body, speculation, perform) {
    this.body = body;
    this.speculation = speculation; // the request's field when speculating; null for the server's own
    this.perform = perform;
    this.runs = [];
    this.views = make("div", { class: "runs" });
    this.outcome = make("div", { class: "outcome" });
    this.notices = make("div", { class: "notices", role: "alert" });
    const asked = make("p", { class: "asked" }, message);
    this.element = make("article", { class: "turn" }, asked, this.views, this.outcome, this.notices);
  }

  get text() {
    return this.runs[0]?.text ?? "";
  }

  get isCompared() {
    return this.element.classList.contains("compared");
  }

  say(words, ...buttons) {
    this.notices.replaceChildren(make("p", {}, words), ...buttons);
  }

  // Answers for the first time, or again after an error.
  async answer(speculates, signal) {
    this.runs = [];
    this.views.replaceChildren();
    this.outcome.replaceChildren();
    try {
      await this.#read(speculates, signal, () => {});
    } finally {
      this.outcome.replaceChildren(...this.#actions());
    }
  }

  async #rerun(signal) {
    const [reference] = this.runs;
    this.runs.length = 1;
    while (this.views.children.length > 1) this.views.lastChild.remove();
    this.#showCompared(true);
    const progress = make("p", { class: "soft progress" });
    this.outcome.replaceChildren(progress);
    try {
      await this.#read(!reference.speculates, signal, (run) => {
        progress.textContent = progressWords(reference, run);
      });
    } finally {
      const rerun = this.runs[1];
      const parts = rerun ? [verdict(reference, rerun, this.body.seed)] : [];
      this.outcome.replaceChildren(...parts, ...this.#actions());
      this.#showCompared(Boolean(rerun));
      this.outcome.scrollIntoView({ block: "nearest" });
      parts[0]?.querySelector("h3").scrollIntoView({ block: "nearest" });
    }
  }

  #showCompared(isCompared) {
    this.element.classList.toggle("compared", isCompared);
    this.views.firstChild.querySelector("h3").hidden = !isCompared;
  }

  async #read(speculates, signal, onProgress) {
    const run = new Run(speculates);
    this.notices.replaceChildren();
    const title = make("h3", { hidden: this.runs.length === 0 }, withOrWithout(speculates));
    const text = makeAnswer(`Answer ${withOrWithout(speculates).toLowerCase()}, token by token`);
    const facts = make("p", { class: "facts soft" });
    const view = make("div", { class: "run" }, title, text, facts);
    view.classList.add("running");
    this.runs.push(run);
    this.views.append(view);
    if (this.isCompared) view.scrollIntoView({ block: "start" });
    const body = { ...this.body };
    if (!speculates) body.speculation = false;
    else if (this.speculation) body.speculation = this.speculation;
    try {
      await run.read(body, signal, (tokens) => {
        for (const token of tokens) addToken(text, token);
        onProgress(run);
      });
    } finally {
      view.classList.remove("running");
      if (run.numTokens) facts.replaceChildren(...factsOf(run, signal.aborted));
      else {
        this.runs.pop();
        view.remove();
      }
    }
  }

  #actions() {
    const [reference] = this.runs;
    if (!reference) return [];
    const copy = makeButton("Copy", async () => {
      await copyText(reference.text);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    }, { class: "quiet" });
    const again = makeButton(`Run again ${withOrWithout(!reference.speculates).toLowerCase()}`, () => {
      hide();
      this.perform(this, (signal) => this.#rerun(signal));
    }, { class: "again" });
    return [make("div", { class: "row" }, again, copy)];
  }
}

function factsOf(run, wasStopped) {
  const facts = [[run.numTokens, " tokens"], [run.rounds, " passes"]];
  if (run.speculates) {
    facts.push([(run.numTokens / run.rounds).toFixed(1), " tokens per pass"]);
    if (run.acceptance !== null) facts.push([`${Math.round(100 * run.acceptance)}%`, " of guesses accepted"]);
    if (run.drafter) facts.push(["", `drafter ${run.drafter}`]);
  }
  if (run.tokensPerSecond) facts.push([run.tokensPerSecond.toFixed(1), " tokens/s"]);
  if (wasStopped) facts.push(["", "stopped"]);
  else if (run.finish === "length") facts.push(["", "cut at the token limit"]);
  return facts.map(([figure, words]) => make("span", {}, make("b", {}, String(figure)), words));
}
