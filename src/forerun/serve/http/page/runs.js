// One generation as it arrives: text, tokens, times.

import { streamChat } from "./api.js";

export class Run {
  constructor(speculates) {
    this.speculates = speculates;
    this.text = "";
    this.fates = []; // of all tokens, also those without a text of their own
    this.usage = null;
    this.finish = null; // "stop" or "length"; null while it runs or if it was cut off
    this.sentAt = 0;
    this.firstAt = null;
    this.lastAt = null;
    this.numFirst = 0; // tokens that came with the first chunk
    this.unmatched = []; // log-probabilities of tokens whose text has not come yet
  }

  // Reads the stream to its end; onTokens is called with the new tokens of each chunk.
  async read(body, signal, onTokens) {
    this.sentAt = performance.now();
    for await (const chunk of streamChat(body, signal)) {
      if (chunk.usage) this.usage = chunk.usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      this.finish = choice.finish_reason ?? this.finish;
      if (choice.fates?.length) this.#count(choice);
      this.text += choice.delta?.content ?? "";
      const parts = choice.tokens ?? [];
      if (parts.length) onTokens(parts.map((part) => this.#withAlternatives(part)));
    }
  }

  #count({ fates, logprobs }) {
    this.lastAt = performance.now();
    if (this.firstAt === null) {
      this.firstAt = this.lastAt;
      this.numFirst = fates.length;
    }
    fates.forEach((fate, i) => {
      this.fates.push(fate);
      const entry = logprobs?.content?.[i];
      if (entry) this.unmatched.push({ ...entry, fate, number: this.fates.length });
    });
  }

  // A text belongs to one token, but not every token has a text: a character may take several.
  #withAlternatives(part) {
    const isSame = (entry) => entry.fate === part.fate && entry.logprob === part.logprob;
    let at = this.unmatched.findIndex((entry) => isSame(entry) && entry.token === part.text);
    if (at < 0) at = this.unmatched.findIndex(isSame);
    if (at < 0) return part;
    const { number, token, top_logprobs } = this.unmatched.splice(0, at + 1).at(-1);
    return { ...part, number, token, top: top_logprobs };
  }

  get isComplete() {
    return this.finish !== null;
  }

  get numTokens() {
    return this.fates.length;
  }

  // Passes of the model: a round ends with a token of the model's own.
  get rounds() {
    const counted = this.usage?.speculation?.rounds;
    if (counted) return counted;
    return this.fates.filter((fate) => fate !== "accepted").length + (this.fates.at(-1) === "accepted");
  }

  get acceptance() {
    const { drafted, accepted } = this.usage?.speculation ?? {};
    return drafted ? accepted / drafted : null;
  }

  get rule() {
    return this.usage?.speculation?.rule ?? "match";
  }

  get drafter() {
    const name = this.usage?.speculation?.drafter;
    return name === "none" ? null : (name ?? null);
  }

  // Tokens of the prompt that had been read for an earlier run.
  get numReused() {
    return this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
  }

  get secondsToFirst() {
    return this.firstAt === null ? null : (this.firstAt - this.sentAt) / 1000;
  }

  get secondsAfterFirst() {
    return this.firstAt === null ? null : (this.lastAt - this.firstAt) / 1000;
  }

  // Without the reading of the prompt, which speculation does not touch.
  get tokensPerSecond() {
    const later = this.numTokens - this.numFirst;
    return later > 0 && this.secondsAfterFirst > 0 ? later / this.secondsAfterFirst : null;
  }
}
