import assert from "node:assert/strict";
import test from "node:test";

import { EventParser } from "../../../src/mulgil/page/client/index.js";
import { asking, grounds, needsGateway } from "./gateway.mjs";

const encoder = new TextEncoder();

function parsed(...pieces) {
  const parser = new EventParser();
  return pieces.flatMap((piece) => parser.push(typeof piece === "string" ? encoder.encode(piece) : piece));
}

/** Cut in two, everywhere; byte by byte; and in pieces of chance. */
function checkAllSplits(bytes) {
  const whole = parsed(bytes);
  for (let at = 0; at <= bytes.length; at++) {
    assert.deepEqual(parsed(bytes.subarray(0, at), bytes.subarray(at)), whole, `cut at byte ${at}`);
  }
  assert.deepEqual(parsed(...[...bytes].map((byte) => Uint8Array.of(byte))), whole);
  for (let seed = 1; seed <= 200; seed++) assert.deepEqual(parsed(...piecesOf(bytes, seed)), whole, `seed ${seed}`);
  return whole;
}

function piecesOf(bytes, seed) {
  const pieces = [];
  let state = seed;
  for (let at = 0; at < bytes.length; ) {
    state = (state * 48271) % 2147483647;
    const size = 1 + (state % 40);
    pieces.push(bytes.subarray(at, at + size));
    at += size;
  }
  return pieces;
}

const EVERYTHING = [
  "\ufeff: a comment before all\n\n",
  "id: 7\nevent: named\ndata: one\ndata:two\ndata\n\n",
  "data:  물길 🌊 \u2028 in one line\nretry: 3000\n\n",
  ": ping\n\n",
  "id: not\0this\nunknown: field\ndata: {\"a\": 1}\n\n",
  "event: nothing to dispatch\n\nid\ndata: id is reset\n\n",
  "id: 9\ndata: never finished\n",
].join("");

for (const [name, lineEnd] of [["LF", "\n"], ["CR LF", "\r\n"], ["CR", "\r"]]) {
  test(`events are the same wherever the bytes are cut: ${name}`, () => {
    assert.deepEqual(checkAllSplits(encoder.encode(EVERYTHING.replaceAll("\n", lineEnd))), [
      { type: "named", data: "one\ntwo\n", id: "7" },
      { type: "message", data: " 물길 🌊 \u2028 in one line", id: "7" },
      { type: "message", data: '{"a": 1}', id: "7" },
      { type: "message", data: "id is reset", id: "" },
    ]);
  });
}

test("an event and its id count only when the blank line is there", () => {
  const parser = new EventParser();
  assert.deepEqual(parser.push(encoder.encode("id: 1\ndata: a\n")), []);
  assert.deepEqual(parser.push(encoder.encode("\n")), [{ type: "message", data: "a", id: "1" }]);
});

test("a byte that is no UTF-8 is shown as such, and nothing else is lost", () => {
  const bytes = Uint8Array.from([...encoder.encode("data: a"), 0xff, ...encoder.encode("b\n\n")]);
  assert.equal(checkAllSplits(bytes)[0].data, "a\ufffdb");
});

test("a recorded stream of the gateway is the same wherever the bytes are cut", needsGateway, async () => {
  const { baseUrl, key, model, messages } = asking(grounds.gateway, { text: "물길 🌊 flows. Ça coule !", split_characters: true });
  const answer = await fetch(`${baseUrl}/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json", accept: "text/event-stream" },
    body: JSON.stringify({ model, messages, stream: true, stream_options: { include_usage: true } }),
  });
  const events = checkAllSplits(new Uint8Array(await answer.arrayBuffer()));
  assert.equal(events.at(-1).data, "[DONE]");
  const text = events.slice(0, -1).map(({ data }) => JSON.parse(data).choices[0]?.delta.content ?? "").join("");
  assert.equal(text, "물길 🌊 flows. Ça coule !");
});
