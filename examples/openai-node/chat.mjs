// Ask a question and read the whole answer. Needs: npm install openai (Node 22 or newer).
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.MULGIL_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.MULGIL_API_KEY ?? "the key that scripts/serve printed",
});

const completion = await client.chat.completions.create({
  model: process.env.MULGIL_MODEL ?? "smollm2-135m-instruct",
  messages: [
    { role: "system", content: "You answer in one sentence." },
    { role: "user", content: "What is the capital of France?" },
  ],
  max_completion_tokens: 100,
});

console.log(completion.choices[0].message.content);
console.log(`[${completion.usage.prompt_tokens} tokens in, ${completion.usage.completion_tokens} out]`);
