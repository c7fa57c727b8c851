// What is asked for with every message, the key, and light or dark.

import { apiKey, readJson, useKey } from "./api.js";
import { byId, make } from "./dom.js";

const DEFAULTS = { temperature: "0.7", top_p: "0.95", seed: "", max_tokens: "200", draft_length: "", drafter: "", system: "" };
const form = byId("settings").querySelector("form");

function saved() {
  try {
    return JSON.parse(sessionStorage.getItem("forerun.settings")) ?? {};
  } catch {
    return {};
  }
}

function fillIn() {
  for (const [name, value] of Object.entries({ ...DEFAULTS, ...saved() })) form.elements[name].value = value;
}

function openSettings() {
  form.elements.key.value = apiKey();
  byId("settings").showModal();
}

export function startSettings() {
  fillIn();
  form.addEventListener("submit", keep);
  byId("settings").addEventListener("cancel", fillIn);
  byId("settings").addEventListener("click", (event) => {
    if (event.target === byId("settings") && form.reportValidity()) form.requestSubmit();
  });
  byId("open-settings").addEventListener("click", openSettings);
  startTheme();
}

function keep() {
  const values = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, form.elements[name].value]));
  sessionStorage.setItem("forerun.settings", JSON.stringify(values));
  const before = apiKey();
  useKey(form.elements.key.value);
  if (apiKey() !== before) showModel();
}

// The fields of a request; a seed is drawn here where none is set, so that it can be used again.
export function requestFields() {
  const { temperature, top_p, seed, max_tokens } = form.elements;
  const drawn = crypto.getRandomValues(new Uint32Array(1))[0];
  return {
    temperature: Number(temperature.value),
    top_p: Number(top_p.value),
    max_completion_tokens: Number(max_tokens.value),
    seed: seed.value === "" ? drawn : Number(seed.value),
  };
}

export const systemPrompt = () => form.elements.system.value.trim();

// How to speculate: the request's field, or null for the server's own choice.
export function speculationField() {
  const { drafter, draft_length } = form.elements;
  const field = {};
  if (drafter.value) field.drafter = drafter.value;
  if (draft_length.value) field.draft_length = Number(draft_length.value);
  return Object.keys(field).length ? field : null;
}

let modelName = null;

// Which model is served, and by which drafters where there are several.
export async function showModel() {
  const list = await readJson("v1/models");
  const model = list.data[0];
  modelName = model.id;
  byId("model").textContent = modelName;
  byId("model").title = modelName;
  const drafters = (model.speculation?.drafters ?? []).filter((name) => name !== "none");
  const select = form.elements.drafter;
  const before = select.value || saved().drafter;
  select.replaceChildren(...drafters.map((name) => make("option", { value: name }, name)));
  if (drafters.includes(before)) select.value = before;
  byId("drafter-choice").hidden = drafters.length < 2;
}

export async function servedModel() {
  if (modelName === null) await showModel();
  return modelName;
}

// Follows the system until the button says otherwise; back at the system's choice it follows again.
function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const press = () => byId("theme").setAttribute("aria-pressed", isDark());
  const stored = localStorage.getItem("forerun.theme");
  if (stored) root.dataset.theme = stored;
  press();
  system.addEventListener("change", press);
  byId("theme").addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    if ((theme === "dark") === system.matches) {
      delete root.dataset.theme;
      localStorage.removeItem("forerun.theme");
    } else {
      root.dataset.theme = theme;
      localStorage.setItem("forerun.theme", theme);
    }
    press();
  });
}
