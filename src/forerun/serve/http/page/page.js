// A chat in which every token shows its fate.

import { apiKey, ServerError, useKey } from "./api.js";
import { byId, makeButton } from "./dom.js";
import { startGauges } from "./gauges.js";
import { hide, startInspector } from "./inspector.js";
import { requestFields, servedModel, showModel, speculationField, startSettings, systemPrompt } from "./settings.js";
import { Turn } from "./turns.js";

const NUM_ALTERNATIVES = 5;
const MOST_RETRIES = 5; // of a full queue
const EXAMPLES = [
  "Write a Python function that returns the first n prime numbers.",
  "Explain to a child why the sky is blue.",
  "Add type hints to this function:\n\ndef area(width, height):\n    return width * height",
  "Correct the spelling: The fishermen were mending their nets, and the children were runing along the wall to watch the boats come in.",
];

let turns = [];
let running = null; // AbortController of the answer that is being written

const announce = (words) => (byId("status").textContent = words);

function setRunning(controller) {
  running = controller;
  document.body.classList.toggle("busy", controller !== null);
  byId("stop").hidden = controller === null;
  byId("send").hidden = controller !== null;
}

function stop() {
  running?.abort();
}

// Runs work(signal), one at a time; errors are shown in the turn, with what can be done about them.
async function perform(turn, work) {
  if (running) return;
  const controller = new AbortController();
  setRunning(controller);
  announce("Answering.");
  try {
    await withRetries(turn, work, controller.signal);
    announce(spoken(turn));
  } catch (problem) {
    if (problem.name === "AbortError") sayStopped(turn, work);
    else if (problem instanceof ServerError) explain(turn, problem, work);
    else throw problem;
  } finally {
    setRunning(null);
  }
}

function sayStopped(turn, work) {
  announce("Stopped.");
  if (!turn.text) turn.say("Stopped before the answer began.", makeButton("Try again", () => perform(turn, work)));
}

const spoken = (turn) => turn.element.querySelector(".verdict h3")?.textContent ?? turn.text;

async function withRetries(turn, work, signal) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work(signal);
    } catch (problem) {
      if (problem.status !== 429 || attempt > MOST_RETRIES) throw problem;
      const seconds = Math.ceil(problem.retryAfter ?? 2);
      for (let left = seconds; left > 0; left -= 1) {
        turn.say(`${problem.message} Trying again in ${left} s; Escape gives up.`);
        await pause(1000, signal);
      }
      turn.notices.replaceChildren();
    }
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

function explain(turn, problem, work) {
  const again = () => perform(turn, work);
  if (problem.status === 401) {
    const enter = () => askForKey(problem.message, again);
    turn.say(apiKey() ? problem.message : "This server asks for a key.", makeButton("Enter a key", enter));
    enter();
    return;
  }
  turn.say(problem.message, makeButton("Try again", again));
}

function askForKey(reason, then) {
  const dialog = byId("ask-key");
  const form = dialog.querySelector("form");
  byId("key-reason").textContent = apiKey() ? reason : "It is kept in this tab until the tab is closed.";
  form.elements.key.value = "";
  form.onsubmit = () => {
    useKey(form.elements.key.value);
    showModel().catch(() => {});
    then();
  };
  if (!dialog.open) dialog.showModal();
}

function history() {
  const system = systemPrompt();
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const { message, turn } of turns) {
    if (!turn.text) continue; // never answered
    messages.push({ role: "user", content: message }, { role: "assistant", content: turn.text });
  }
  return messages;
}

async function send(message) {
  if (running || !message.trim()) return;
  const body = {
    messages: [...history(), { role: "user", content: message }],
    ...requestFields(),
    stream: true,
    stream_options: { include_usage: true },
    fates: true,
    logprobs: true,
    top_logprobs: NUM_ALTERNATIVES,
  };
  const turn = new Turn(message, body, speculationField(), perform);
  turns.push({ message, turn });
  byId("welcome").hidden = true;
  byId("turns").append(turn.element);
  turn.element.scrollIntoView({ block: "nearest" });
  const speculates = byId("speculates").checked;
  await perform(turn, async (signal) => {
    body.model = await servedModel();
    await turn.answer(speculates, signal);
  });
}

function newChat() {
  stop();
  hide();
  turns = [];
  byId("turns").replaceChildren();
  byId("welcome").hidden = false;
  announce("New chat.");
  byId("message").focus();
}

// Keeps the end of a growing answer in view unless the reader has scrolled away from it.  A second
// run grows beside the first, where there is room for both, and needs no scrolling.
function startFollowing() {
  const stacked = matchMedia("(max-width: 46rem)"); // as in answers.css
  let isAtEnd = true;
  const distance = () => document.documentElement.scrollHeight - innerHeight - scrollY;
  addEventListener("scroll", () => (isAtEnd = distance() < 80), { passive: true });
  new ResizeObserver(() => {
    const turn = turns.at(-1)?.turn;
    if (turn && isAtEnd && (!turn.isCompared || stacked.matches)) scrollTo({ top: document.documentElement.scrollHeight });
  }).observe(byId("turns"));
}

function startComposer() {
  const area = byId("message");
  const submit = () => {
    const message = area.value;
    if (running || !message.trim()) return;
    area.value = "";
    send(message);
  };
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    hide();
    stop();
  });
  byId("stop").addEventListener("click", () => {
    stop();
    area.focus();
  });
  byId("new-chat").addEventListener("click", newChat);
  byId("no-key").addEventListener("click", () => byId("ask-key").close());
  byId("examples").append(...EXAMPLES.map((words) => makeButton(words, () => send(words))));
  if (matchMedia("(hover: hover)").matches) area.focus();
}

startSettings();
startComposer();
startFollowing();
startInspector(byId("turns"));
startGauges();
showModel().catch((problem) => {
  if (problem.status === 401) askForKey(problem.message, () => {});
});
