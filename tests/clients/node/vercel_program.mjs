// Does with the Vercel AI SDK what its users do.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { z } from "zod";

import { idle, raised, report, running, told } from "./findings.mjs";

const prompt = "What is a river?";
const calls = '/simulate {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Seoul"}}]}';
const fails = '/simulate {"tokens": 9, "fail_at": 3}';

const at = (gateway = "gateway", key = "key") =>
  createOpenAICompatible({
    name: "mulgil",
    baseURL: `${told[gateway]}/v1`,
    apiKey: told[key],
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
const model = at()(told.model);
const strict = createOpenAI({ baseURL: `${told.gateway}/v1`, apiKey: told.key }).chat(told.model);
const weather = tool({
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => `Rain in ${city}.`,
});

async function generated(which) {
  const { text, finishReason, usage, response } = await generateText({ model: which, prompt, seed: 1 });
  return { text, finishReason, usage, model: response.modelId, id: response.id };
}

async function streamed(which) {
  const result = streamText({ model: which, prompt, seed: 1, onError: () => {} });
  let pieces = 0;
  for await (const _ of result.textStream) pieces += 1;
  const { text, finishReason, usage } = result;
  return { pieces, text: await text, finishReason: await finishReason, usage: await usage };
}

// The kinds of parts, and the error among them if there is one.
async function parts(which, content, fields = {}) {
  const kinds = [];
  let text = "";
  let error = null;
  const { stream, finishReason } = streamText({ model: which, prompt: content, onError: () => {}, ...fields });
  for await (const part of stream) {
    kinds.push(part.type);
    if (part.type === "text-delta") text += part.text;
    if (part.type === "error") error = raised(part.error);
  }
  return { kinds, text, error, finishReason: await finishReason.then((reason) => reason, () => null) };
}

async function toolRoundTrip(which) {
  const { text, steps } = await generateText({
    model: which,
    prompt: calls,
    tools: { get_weather: weather },
    stopWhen: stepCountIs(3),
  });
  return {
    text,
    inputs: steps.flatMap((step) => step.toolCalls.map((call) => call.input)),
    results: steps.flatMap((step) => step.toolResults.map((result) => result.output)),
    finishReasons: steps.map((step) => step.finishReason),
  };
}

async function toolStreamed(which) {
  const { stream } = streamText({ model: which, prompt: calls, tools: { get_weather: weather }, onError: () => {} });
  const inputs = [];
  for await (const part of stream) if (part.type === "tool-call") inputs.push(part.input);
  return inputs;
}

async function object() {
  const schema = z.object({ name: z.string(), population: z.int() });
  return (await generateText({ model, prompt, output: Output.object({ schema }) })).output;
}

async function reasoned() {
  const content = '/simulate {"reasoning": "It is wet.", "text": "A river."}';
  const { text, finalStep } = await generateText({ model, prompt: content });
  const { stream } = streamText({ model, prompt: content, onError: () => {} });
  let streamed = "";
  for await (const part of stream) if (part.type === "reasoning-delta") streamed += part.text;
  return { text, reasoning: finalStep.reasoningText, streamed };
}

async function embedded() {
  const embedder = at().embeddingModel(told.embedding_model);
  const one = await embed({ model: embedder, value: "rivers and lakes" });
  const many = await embedMany({ model: embedder, values: ["rivers and lakes", "bread"] });
  return { one: one.embedding, many: many.embeddings, tokens: one.usage.tokens };
}

// Leave in the middle, and see what the server still does while this client lives on.
async function hangingUp() {
  const leaving = new AbortController();
  const { textStream } = streamText({
    model: at("quiet")(told.model),
    prompt: '/simulate {"tokens": 5000, "gap": 0.01}',
    maxOutputTokens: 5000,
    abortSignal: leaving.signal,
    onError: () => {},
  });
  let chunks = 0;
  let before = 0;
  for await (const _ of textStream) {
    if (++chunks < 3) continue;
    before = await running();
    leaving.abort();
    break;
  }
  return { before, after: await idle() };
}

// What the SDK raises at last when all its tries were refused: the last of the errors, and how many there were.
async function refused(gateway, key, fields = {}) {
  try {
    await generateText({ model: at(gateway, key)(told.model), prompt, maxOutputTokens: 5, ...fields });
  } catch (error) {
    const last = error.lastError ?? error;
    const { code, param } = JSON.parse(last.responseBody).error;
    return { raised: error.name, status: last.statusCode, code, param, tries: error.errors?.length ?? 1 };
  }
  throw new Error("it was not refused");
}

await report({
  version: () => JSON.parse(readFileSync(new URL("node_modules/ai/package.json", import.meta.url))).version,
  "generated (compatible)": () => generated(model),
  "generated (openai)": () => generated(strict),
  "streamed (compatible)": () => streamed(model),
  "streamed (openai)": () => streamed(strict),
  "tool round trip (compatible)": () => toolRoundTrip(model),
  "tool round trip (openai)": () => toolRoundTrip(strict),
  "tool streamed (compatible)": () => toolStreamed(model),
  "tool streamed (openai)": () => toolStreamed(strict),
  object,
  reasoned,
  embedded,
  "failing (compatible)": () => parts(at("gateway", "failing_key")(told.model), fails),
  "failing (openai)": () => parts(strict, fails),
  "hanging up": hangingUp,
  "no such model": async () => {
    await generateText({ model: at()("nope"), prompt });
  },
  "no such model streamed": () => parts(at()("nope"), prompt),
  "rate limited": () => refused("full", "limited_key"),
  "never fits": () => refused("full", "never_key", { maxOutputTokens: 2000 }),
  unavailable: () => refused("storeless", "unavailable_key"),
});
