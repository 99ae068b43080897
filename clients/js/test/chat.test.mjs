import assert from "node:assert/strict";
import test from "node:test";

import * as client from "../../../src/mulgil/page/client/index.js";
import { asking, errorOf, grounds, needsGateway, until } from "./gateway.mjs";
import { relay } from "./relay.mjs";

const { streamChat } = client;
const TEXT = "물길 🌊 is a waterway.\nÇa coule, 천천히. 👩‍👩‍👧‍👦";
const GROWING = { text: TEXT, split_characters: true };
const PACED = { tokens: 1000, gap: 0.02 };

test("an answer is its deltas, with its usage and its finish reason", needsGateway, async () => {
  const stream = streamChat(asking(grounds.gateway, GROWING));
  let text = "";
  for await (const delta of stream) text += delta.text;
  assert.equal(text, TEXT);
  assert.equal(stream.text, TEXT);
  assert.equal(stream.finishReason, "stop");
  assert.equal(stream.usage.completion_tokens, new TextEncoder().encode(TEXT).length);
});

test("callbacks are told the same", needsGateway, async () => {
  let text = "";
  const options = asking(grounds.gateway, GROWING, { onDelta: (delta) => (text += delta.text) });
  const result = await streamChat(options).result();
  assert.equal(text, TEXT);
  assert.equal(result.text, TEXT);
  assert.equal(result.status, "completed");
});

test("reasoning and tool calls are told apart", needsGateway, async () => {
  const calls = [{ name: "weather", arguments: { city: "서울" } }];
  const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
  const stream = streamChat(asking(grounds.gateway, { reasoning: "hm", tool_calls: calls }, { parameters: { tools } }));
  let written = "";
  for await (const { toolCalls } of stream) for (const call of toolCalls) written += call.function.arguments ?? "";
  assert.equal(stream.reasoning, "hm");
  assert.deepEqual(JSON.parse(written), { city: "서울" });
  assert.equal(stream.finishReason, "tool_calls");
});

test("one byte at a time is the same answer", needsGateway, async () => {
  const slow = await relay(grounds.gateway, { oneByOne: true });
  try {
    assert.equal((await streamChat(asking(slow.url, GROWING)).result()).text, TEXT);
  } finally {
    await slow.close();
  }
});

test("a line that breaks anywhere is never taken for the end", needsGateway, async () => {
  for (let cut = 1; cut < 6_000; cut += 367) {
    const cutting = await relay(grounds.gateway, { cuts: [cut] });
    try {
      const stream = streamChat(asking(cutting.url, GROWING));
      const error = await errorOf(stream);
      assert.ok(error instanceof client.ConnectionLostError, `${cut}: ${error}`);
      assert.equal(error.resumable, null);
      assert.ok(TEXT.startsWith(stream.text), `${cut}: ${stream.text}`);
    } finally {
      await cutting.close();
    }
  }
});

test("a line that goes silent counts as broken", needsGateway, async () => {
  const error = await errorOf(streamChat(asking(grounds.quiet, { hang_at: 3 }, { silence: 200 })));
  assert.ok(error instanceof client.ConnectionLostError, String(error));
  await until(grounds.quiet, 0);
});

test("a server that is not there is a lost connection", async () => {
  const error = await errorOf(streamChat(asking("http://127.0.0.1:9", {})));
  assert.ok(error instanceof client.ConnectionLostError, String(error));
});

test("a failure in the middle is told as the gateway tells it, after the text so far", needsGateway, async () => {
  const stream = streamChat(asking(grounds.gateway, { tokens: 20, fail_at: 8 }));
  const error = await errorOf(stream);
  assert.ok(error instanceof client.StreamFailedError, String(error));
  assert.equal(error.code, "engine_error");
  assert.ok(stream.text.length > 0);
});

for (const [name, gateway, changes, kind, facts] of [
  ["a wrong key", "gateway", { key: "sk-mg-nobody" }, "AuthenticationError", { status: 401, code: "invalid_api_key" }],
  ["no key", "gateway", { key: undefined }, "AuthenticationError", { status: 401, code: null }],
  ["an unknown model", "gateway", { model: "nobody" }, "NotFoundError", { status: 404, code: "model_not_found" }],
  [
    "a field out of range",
    "gateway",
    { parameters: { temperature: 9 } },
    "ValidationError",
    { status: 422, param: "temperature", code: "decimal_above_max_value", retryable: false },
  ],
  ["a budget that is used up", "full", {}, "RateLimitError", { status: 429, code: "rate_limit_exceeded", retryable: true }],
  [
    "a request that never fits",
    "full",
    { parameters: { max_tokens: 2_000 } },
    "RateLimitError",
    { status: 429, code: "request_exceeds_limit", retryable: false, retryAfter: null },
  ],
  ["no budget store", "storeless", {}, "UnavailableError", { status: 503, code: "limiter_unavailable", retryable: true }],
]) {
  test(`${name} is a ${kind}`, needsGateway, async () => {
    const parameters = { max_tokens: 5 };
    const error = await errorOf(streamChat(asking(grounds[gateway], { tokens: 5 }, { parameters, ...changes })));
    assert.ok(error instanceof client[kind], String(error));
    for (const [field, value] of Object.entries(facts)) assert.equal(error[field], value, field);
    assert.match(error.requestId, /./);
    if (error.retryable) assert.ok(error.retryAfter > 0);
  });
}

test("an abort stops the engine and throws the signal's reason", needsGateway, async () => {
  const controller = new AbortController();
  const stream = streamChat(asking(grounds.quiet, PACED, { signal: controller.signal }));
  await assert.rejects(
    async () => {
      for await (const { text } of stream) if (text) controller.abort();
    },
    { name: "AbortError" },
  );
  await until(grounds.quiet, 0);
});

test("leaving the loop stops the engine", needsGateway, async () => {
  for await (const { text } of streamChat(asking(grounds.quiet, PACED))) if (text) break;
  await until(grounds.quiet, 0);
});

test("a stream that was aborted before it began asks nothing", async () => {
  const options = asking("http://127.0.0.1:9", {}, { signal: AbortSignal.abort(), fetch: () => assert.fail("asked") });
  assert.equal((await errorOf(streamChat(options))).name, "AbortError");
});
