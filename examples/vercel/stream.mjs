// Print an answer while it is made, with the Vercel AI SDK.
// Needs: npm install ai @ai-sdk/openai-compatible (Node 22 or newer).
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const mulgil = createOpenAICompatible({
  name: "mulgil",
  baseURL: process.env.MULGIL_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.MULGIL_API_KEY ?? "the key that scripts/serve printed",
  includeUsage: true, // without it the usage of streams is unknown
});

// streamText throws nothing by itself: what goes wrong comes as a part of the stream.
const { stream, usage } = streamText({
  model: mulgil(process.env.MULGIL_MODEL ?? "smollm2-135m-instruct"),
  prompt: "Tell me about rivers.",
  maxOutputTokens: 200,
});
for await (const part of stream) {
  if (part.type === "text-delta") process.stdout.write(part.text);
  if (part.type === "error") throw part.error;
}
console.log(`\n[${(await usage).outputTokens} tokens]`);
