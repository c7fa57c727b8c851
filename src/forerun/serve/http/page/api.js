// The server's routes, and its errors in words for people.

let key = sessionStorage.getItem("forerun.key") ?? "";

export const apiKey = () => key;

export function useKey(value) {
  key = value.trim();
  if (key) sessionStorage.setItem("forerun.key", key);
  else sessionStorage.removeItem("forerun.key");
}

export class ServerError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status; // 0: no answer at all
    this.code = code;
    this.retryAfter = retryAfter; // seconds
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new ServerError("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error ?? {};
  const { status } = response;
  const seconds = Number(response.headers.get("Retry-After"));
  const detail = { status, code: error.code ?? null, retryAfter: seconds > 0 ? seconds : null };
  return new ServerError(inWords(status, error), detail);
}

function inWords(status, { code, message }) {
  if (code === "context_length_exceeded") {
    return "This chat has become too long for the model. Start a new one, or ask for fewer tokens in the settings.";
  }
  if (status === 401) return "The server does not know this key.";
  if (status === 429) return message ?? "The server is busy.";
  if (status === 503) return "The server is stopping or not ready yet.";
  return message ?? `The server answered with status ${status}.`;
}

export const readJson = async (path) => (await request(path)).json();

// Yields the chunks of a streamed chat completion.
export async function* streamChat(body, signal) {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(body), signal };
  const response = await request("v1/chat/completions", options);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(inWords(0, chunk.error), { code: chunk.error.code });
    yield chunk;
  }
  throw new ServerError("The connection broke off. What had arrived is kept.");
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read().catch((problem) => {
      if (problem.name === "AbortError") throw problem;
      return { done: true };
    });
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}
