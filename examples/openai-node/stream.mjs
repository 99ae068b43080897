// Print an answer while it is made. Needs: npm install openai (Node 22 or newer).
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.MULGIL_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.MULGIL_API_KEY ?? "the key that scripts/serve printed",
});

const stream = await client.chat.completions.create({
  model: process.env.MULGIL_MODEL ?? "smollm2-135m-instruct",
  messages: [{ role: "user", content: "Tell me about rivers." }],
  max_completion_tokens: 200,
  stream: true,
  stream_options: { include_usage: true }, // the last chunk has the usage, and no choices
});

// Leaving this loop early, by `break` or an exception, hangs up, and the server stops making tokens.
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
  if (chunk.usage) console.log(`\n[${chunk.usage.completion_tokens} tokens]`);
}
