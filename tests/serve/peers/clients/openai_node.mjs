// The official JavaScript client: whole, streamed, a schema, a response, and leaving a stream.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [address, model, folder] = process.argv.slice(2);
const find = createRequire(pathToFileURL(folder + "/"));
const { default: OpenAI } = await import(pathToFileURL(find.resolve("openai")).href);
const facts = readFileSync(`${folder}/node_modules/openai/package.json`, "utf8");

const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "any", maxRetries: 0 });
const how = { model, seed: 7, temperature: 0.8, max_tokens: 12 };
const messages = [{ role: "user", content: "Is this soup good?" }];

const whole = await client.chat.completions.create({ messages, ...how });
let streamed = "";
for await (const part of await client.chat.completions.create({ messages, stream: true, ...how })) {
  streamed += part.choices[0]?.delta?.content ?? "";
}
const schema = {
  type: "object",
  properties: { verdict: { enum: ["good", "bad"] } },
  required: ["verdict"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "review", schema, strict: true } };
const review = await client.chat.completions.create({
  messages, ...how, max_tokens: 24, response_format: format,
});
const response = await client.responses.create({ model, input: "Hello.", max_output_tokens: 16 });
const left = await client.chat.completions.create({
  messages, ...how, max_tokens: 200, stream: true,
});
for await (const part of left) break;
let refused = null;
try {
  await client.chat.completions.create({ messages: [], ...how });
} catch (error) {
  refused = error.param;
}
console.log(JSON.stringify({
  version: JSON.parse(facts).version,
  whole: whole.choices[0].message.content,
  streamed,
  structured: ["good", "bad"].includes(JSON.parse(review.choices[0].message.content).verdict),
  response: response.output_text.length > 0,
  refused: refused === "messages",
}));
