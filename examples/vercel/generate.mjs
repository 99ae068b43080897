// Ask a question with the Vercel AI SDK. Needs: npm install ai @ai-sdk/openai-compatible (Node 22 or newer).
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";

const mulgil = createOpenAICompatible({
  name: "mulgil",
  baseURL: process.env.MULGIL_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.MULGIL_API_KEY ?? "the key that scripts/serve printed",
});

const { text, finishReason, usage } = await generateText({
  model: mulgil(process.env.MULGIL_MODEL ?? "smollm2-135m-instruct"),
  instructions: "You answer in one sentence.",
  prompt: "What is the capital of France?",
  maxOutputTokens: 100,
});

console.log(text);
console.log(`[${usage.inputTokens} tokens in, ${usage.outputTokens} out, ended by ${finishReason}]`);
