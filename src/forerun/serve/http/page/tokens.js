// An answer as tokens in the colour of their fate; one stop for Tab, arrow keys within.

import { make } from "./dom.js";
import { describe } from "./inspector.js";

export function makeAnswer(label) {
  const element = make("div", { class: "answer", role: "group", "aria-label": label });
  element.addEventListener("keydown", (event) => move(event, element));
  element.addEventListener("focusin", (event) => makeStop(element, event.target));
  return element;
}

// Appends one token; its line breaks stay visible, since they are tokens like any other.
export function addToken(answer, token) {
  const element = make("span", { class: `token ${token.fate}` });
  token.text.split("\n").forEach((line, i) => {
    if (i > 0) element.append(make("span", { class: "break" }), "\n");
    element.append(line);
  });
  if (token.logprob != null) element.style.setProperty("--p", Math.exp(token.logprob).toFixed(3));
  describe(element, token);
  if (!answer.firstChild) element.tabIndex = 0;
  answer.append(element);
}

function makeStop(answer, element) {
  for (const other of answer.querySelectorAll("[tabindex]")) {
    if (other !== element) other.removeAttribute("tabindex"); // without it, the element would lose the focus
  }
}

function move(event, answer) {
  const target = destination(event.key, event.target, answer);
  if (!target) return;
  event.preventDefault();
  target.tabIndex = 0;
  target.focus();
}

function destination(key, element, answer) {
  switch (key) {
    case "ArrowRight":
      return element.nextElementSibling;
    case "ArrowLeft":
      return element.previousElementSibling;
    case "Home":
      return answer.firstElementChild;
    case "End":
      return answer.lastElementChild;
    case "ArrowDown":
      return onOtherLine(element, (next) => next.nextElementSibling);
    case "ArrowUp":
      return onOtherLine(element, (next) => next.previousElementSibling);
    default:
      return null;
  }
}

// The token of the line before or after that lies nearest.
function onOtherLine(element, step) {
  const here = element.getBoundingClientRect();
  let best = null;
  let line = null;
  for (let next = step(element); next; next = step(next)) {
    const box = next.getBoundingClientRect();
    if (Math.abs(box.top - here.top) < here.height / 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > here.height / 2) break;
    const distance = Math.abs(box.left - here.left);
    if (best === null || distance < best.distance) best = { next, distance };
  }
  return best?.next;
}
