// The probability of the token under the pointer or the focus, and what else was likely there.

import { byId, make } from "./dom.js";

const FATES = {
  accepted: "accepted: guessed by the drafter, kept",
  correction: "correction: the model’s own, after a wrong guess",
  bonus: "bonus: the model’s own, nothing refused",
};
const details = new WeakMap(); // token's element -> {text, fate, logprob, number, token, top}
const box = byId("inspector");
let shownFor = null;

export const describe = (element, token) => details.set(element, token);

const visible = (text) => (text === "" ? "(no text)" : text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥"));

export function percent(logprob) {
  const p = Math.exp(logprob);
  if (p > 0.9995) return p === 1 ? "100%" : ">99.9%";
  return p < 0.0005 ? "<0.1%" : `${(100 * p).toFixed(1)}%`;
}

function bar({ token, logprob }, isChosen) {
  const fill = make("i");
  fill.style.setProperty("--p", Math.exp(logprob));
  const attributes = isChosen ? { class: "chosen" } : {};
  return make("li", attributes, fill, make("code", {}, visible(token)), make("span", {}, percent(logprob)));
}

function fill({ text, fate, logprob, number, token, top }) {
  const title = make("p", {}, make("b", {}, make("code", {}, visible(text))), number ? ` token ${number}` : "");
  box.replaceChildren(title, make("p", { class: `fate ${fate}` }, FATES[fate] ?? fate));
  if (logprob == null) return;
  box.append(make("p", { class: "probability" }, make("b", {}, percent(logprob)), " probable"));
  if (!top?.length) return;
  const rows = [...top];
  const at = rows.findIndex((other) => other.token === token);
  if (at < 0) rows.push({ token, logprob });
  const chosen = at < 0 ? rows.length - 1 : at;
  box.append(make("ol", { "aria-label": "Likeliest tokens" }, ...rows.map((row, i) => bar(row, i === chosen))));
}

function place(element) {
  const token = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const left = Math.max(8, Math.min(token.left, document.documentElement.clientWidth - width - 8));
  const above = token.top - height - 10;
  box.style.left = `${left}px`;
  box.style.top = `${above > 8 ? above : Math.min(token.bottom + 10, innerHeight - height - 8)}px`;
}

function show(element) {
  hide();
  shownFor = element;
  fill(details.get(element));
  box.hidden = false;
  element.setAttribute("aria-describedby", "inspector");
  place(element);
}

export function hide() {
  shownFor?.removeAttribute("aria-describedby");
  shownFor = null;
  box.hidden = true;
}

export function startInspector(root) {
  const tokenOf = (event) => {
    const element = event.target.closest?.(".token");
    return element && details.has(element) ? element : null;
  };
  const follow = (event) => {
    const element = tokenOf(event);
    if (element) show(element);
    else if (event.type === "pointerover" && !document.activeElement?.matches(".answer .token")) hide();
  };
  root.addEventListener("pointerover", follow);
  root.addEventListener("focusin", follow);
  root.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  addEventListener("pointerdown", (event) => !tokenOf(event) && hide());
  root.addEventListener("focusout", hide);
  addEventListener("scroll", () => shownFor && place(shownFor), { passive: true });
}
