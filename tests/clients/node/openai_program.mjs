// Does with openai-node what its users do; the counterpart of ../python/openai_program.py, check by check.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { VERSION } from "openai/version";
import { z } from "zod";

import { idle, report, running, told } from "./findings.mjs";

const { model } = told;
const user = (content) => [{ role: "user", content }];
const question = user("What is a river?");
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};
const calls = '/simulate {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Seoul"}}]}';
const thinks = '/simulate {"reasoning": "It is wet.", "text": "A river."}';
const object = '/simulate {"text": "{\\"name\\": \\"Seoul\\", \\"population\\": 9 }"}';
const city = zodResponseFormat(z.object({ name: z.string(), population: z.int() }), "city");

const at = (gateway = "gateway", key = "key", more = {}) =>
  new OpenAI({ baseURL: `${told[gateway]}/v1`, apiKey: told[key], ...more });
const client = at("gateway", "key", { maxRetries: 0 });
const ask = (content = "What is a river?", fields = {}) =>
  client.chat.completions.create({ model, messages: user(content), seed: 1, ...fields });

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

// The final completion and the kinds of events of the `.stream()` helper.
async function helped(content = "What is a river?", fields = {}) {
  const stream = client.chat.completions.stream({ model, messages: user(content), seed: 1, ...fields });
  const chunks = await all(stream);
  return { events: [chunks.length], final: await stream.finalChatCompletion() };
}

async function raw() {
  const { data, response, request_id } = await client.chat.completions
    .create({ model, messages: question })
    .withResponse();
  return { headers: Object.fromEntries(response.headers), id: data.id, request_id };
}

async function asynchronous() {
  const plain = await ask();
  const chunks = await all(await ask(undefined, { stream: true }));
  const stream = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? "")).join("");
  return { plain: plain.choices[0].message.content, stream };
}

// A call that is asked for, and an answer to its result, by the helper that runs functions by itself.
async function toolRoundTrip() {
  const runner = client.chat.completions.runTools({
    model,
    messages: user(calls),
    tools: [{ type: "function", function: { ...weather.function, parse: JSON.parse, function: rain } }],
  });
  const answer = await runner.finalChatCompletion();
  return { asked: runner.allChatCompletions()[0].choices[0], answer };
}

function rain({ city }) {
  if (city !== "Seoul") throw new Error(`called with the city ${city}`);
  return "Rain.";
}

async function parsed() {
  const answer = await client.chat.completions.parse({ model, messages: question, response_format: city });
  return answer.choices[0].message.parsed;
}

async function parsedStream() {
  const stream = client.chat.completions.stream({ model, messages: question, response_format: city });
  return (await stream.finalChatCompletion()).choices[0].message.parsed;
}

async function jsonMode() {
  const answer = await ask(undefined, { response_format: { type: "json_object" } });
  return answer.choices[0].message.content;
}

async function completions() {
  const prompts = await client.completions.create({ model, prompt: ["one", "two"], max_tokens: 5 });
  const stream = await client.completions.create({ model, prompt: "one", max_tokens: 5, stream: true });
  return { prompts, stream: await all(stream) };
}

// As the SDK asks by itself (base64), and as floats.
async function embeddings() {
  const request = { model: told.embedding_model, input: ["rivers and lakes", "bread"] };
  const packed = await client.embeddings.create(request);
  const plain = await client.embeddings.create({ ...request, encoding_format: "float" });
  return {
    packed: packed.data.map((one) => one.embedding),
    plain: plain.data.map((one) => one.embedding),
    index: packed.data.map((one) => one.index),
    usage: packed.usage,
  };
}

// The engine fails after some tokens; with the retries that the SDK makes by itself.
async function failing() {
  const content = '/simulate {"tokens": 9, "fail_at": 3}';
  return all(
    await at("gateway", "failing_key").chat.completions.create({ model, messages: user(content), stream: true }),
  );
}

// Leave in the middle, and see what the server still does while this client lives on.
async function hangingUp() {
  const stream = await at("quiet", "key", { maxRetries: 0 }).chat.completions.create({
    model,
    messages: user('/simulate {"tokens": 5000, "gap": 0.01}'),
    stream: true,
    max_tokens: 5000,
  });
  let chunks = 0;
  let before = 0;
  for await (const _ of stream) {
    if (++chunks < 3) continue;
    before = await running();
    break;
  }
  return { before, after: await idle() };
}

// A request that is refused, with the retries that the SDK makes by itself.
const refused = (gateway, key, fields = {}) =>
  at(gateway, key).chat.completions.create({ model, messages: question, max_tokens: 5, ...fields });

await report({
  version: () => VERSION,
  chat: () => ask(),
  stream: async () => all(await ask(undefined, { stream: true, stream_options: { include_usage: true } })),
  helper: () => helped(),
  "two choices": () => ask(undefined, { n: 2 }),
  "two choices streamed": () => helped(undefined, { n: 2 }),
  raw,
  asynchronous,
  cut: () => ask('/simulate {"tokens": 9}', { max_tokens: 3 }),
  "tool round trip": toolRoundTrip,
  tools: () => ask(calls, { tools: [weather] }),
  "tools streamed": () => helped(calls, { tools: [weather] }),
  "tools accumulated": async () => (await helped(calls, { tools: [weather], n: 1 })).final,
  parsed,
  "parsed stream": parsedStream,
  "parsed although cut": () =>
    client.chat.completions.parse({ model, messages: user(object), response_format: city, max_tokens: 2 }),
  "json mode": jsonMode,
  reasoning: () => ask(thinks),
  "reasoning streamed": async () => all(await ask(thinks, { stream: true })),
  logprobs: () => ask(undefined, { logprobs: true, top_logprobs: 2 }),
  "logprobs streamed": async () => all(await ask(undefined, { logprobs: true, top_logprobs: 2, stream: true })),
  completions,
  embeddings,
  models: async () => ({
    list: (await all(client.models.list())).map((one) => one.id),
    one: (await client.models.retrieve(model)).id,
  }),
  "no such model": () => ask(undefined, { model: "nope" }),
  "out of range": () => ask(undefined, { temperature: 9 }),
  "wrong key": () => refused("gateway", "wrong_key"),
  "too long": () => ask("water ".repeat(20_000)),
  failing,
  "failing helper": () => helped('/simulate {"tokens": 9, "fail_at": 3}'),
  "hanging up": hangingUp,
  "rate limited": () => refused("full", "limited_key"),
  "never fits": () => refused("full", "never_key", { max_tokens: 2000 }),
  unavailable: () => refused("storeless", "unavailable_key"),
});
