import assert from "node:assert/strict";
import test from "node:test";

import * as client from "../../../src/mulgil/page/client/index.js";
import { asking, errorOf, grounds, needsGateway, until } from "./gateway.mjs";
import { relay } from "./relay.mjs";

const { followStream, streamChat } = client;
const TEXT = "물길 🌊 is a waterway.\nÇa coule, 천천히. 👩‍👩‍👧‍👦";
const SLOWLY = { text: TEXT, split_characters: true, gap: 0.002 };
const AT_ONCE = { firstDelay: 1 };

test("an answer is exact whichever bytes the line breaks after", needsGateway, async () => {
  for (let round = 0; round < 60; round++) {
    const cuts = [700 + Math.floor(Math.random() * 5_000), 1 + Math.floor(Math.random() * 2_500), 1 + Math.floor(Math.random() * 900)];
    const cutting = await relay(grounds.gateway, { cuts });
    const told = [];
    try {
      const options = { resume: true, reconnect: AT_ONCE, onReconnect: (event) => told.push(event.attempt) };
      const result = await streamChat(asking(cutting.url, SLOWLY, options)).result();
      assert.equal(result.text, TEXT, `cuts ${cuts}`);
      assert.equal(result.finishReason, "stop", `cuts ${cuts}`);
      assert.equal(result.usage.completion_tokens, new TextEncoder().encode(TEXT).length);
      assert.ok(told.length >= cutting.seen.streams - 1, `cuts ${cuts}`);
    } finally {
      await cutting.close();
    }
  }
});

test("one byte at a time and a broken line are still the same answer", needsGateway, async () => {
  const cutting = await relay(grounds.gateway, { oneByOne: true, cuts: [2_000] });
  try {
    let resumed = 0;
    const options = { resume: true, reconnect: AT_ONCE, onResumed: () => resumed++ };
    assert.equal((await streamChat(asking(cutting.url, SLOWLY, options)).result()).text, TEXT);
    assert.equal(resumed, 1);
  } finally {
    await cutting.close();
  }
});

test("a line that stays broken says where to go on, and there it goes on", needsGateway, async () => {
  const cutting = await relay(grounds.gateway, { cuts: [2_500] });
  const stream = streamChat(asking(cutting.url, SLOWLY, { resume: true, reconnect: { attempts: 2, firstDelay: 20 }, onReconnect: () => cutting.close() }));
  const error = await errorOf(stream);
  assert.ok(error instanceof client.ConnectionLostError, String(error));
  assert.ok(TEXT.startsWith(stream.text));
  const rest = followStream({ baseUrl: `${grounds.gateway}/v1`, key: grounds.key, position: error.resumable });
  assert.equal(stream.text + (await rest.result()).text, TEXT);
});

test("a line that breaks again and again without anything new is given up", needsGateway, async () => {
  const tries = [];
  const rules = { attempts: 3, firstDelay: 1 };
  const options = { resume: true, silence: 150, reconnect: rules, onReconnect: ({ attempt }) => tries.push(attempt) };
  const error = await errorOf(streamChat(asking(grounds.quiet, { hang_at: 2 }, options)));
  assert.ok(error instanceof client.ConnectionLostError, String(error));
  assert.deepEqual(tries, [1, 2, 3]);
  const address = `${grounds.quiet}/v1/streams/${error.resumable.id}`;
  await fetch(address, { method: "DELETE", headers: { authorization: `Bearer ${grounds.key}` } });
  await until(grounds.quiet, 0);
});

test("a stream that is gone is a NotFoundError", needsGateway, async () => {
  const error = await errorOf(followStream({ baseUrl: `${grounds.gateway}/v1`, key: grounds.key, position: { id: "stream_none" } }));
  assert.ok(error instanceof client.NotFoundError, String(error));
  assert.equal(error.code, "stream_not_found");
});

for (const [name, leave] of [
  ["an abort", (controller) => controller.abort()],
  ["leaving the loop", () => "leave"],
]) {
  test(`${name} stops a stream that the gateway keeps`, needsGateway, async () => {
    const controller = new AbortController();
    const stream = streamChat(asking(grounds.quiet, { tokens: 1000, gap: 0.02 }, { resume: true, signal: controller.signal }));
    try {
      for await (const { text } of stream) if (text && leave(controller) === "leave") break;
    } catch (error) {
      assert.equal(error.name, "AbortError");
    }
    await until(grounds.quiet, 0, 1_000);
  });
}

test("an abort before the first token stops a stream that the gateway keeps", needsGateway, async () => {
  const controller = new AbortController();
  const stream = streamChat(asking(grounds.quiet, { tokens: 1000, ttft: 0.3, gap: 0.02 }, { resume: true, signal: controller.signal }));
  setTimeout(() => controller.abort(), 50);
  assert.equal((await errorOf(stream)).name, "AbortError");
  await new Promise((resolve) => setTimeout(resolve, 100));
  await until(grounds.quiet, 0, 3_000);
});
