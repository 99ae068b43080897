// Let the model call a function of yours, and answer with what it returned.
// Needs: npm install openai (Node 22 or newer).
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.MULGIL_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.MULGIL_API_KEY ?? "the key that scripts/serve printed",
});
const model = process.env.MULGIL_MODEL ?? "smollm2-135m-instruct";

const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city, now.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];
const getWeather = ({ city }) => `Rain in ${city}, 12 degrees.`;

const messages = [{ role: "user", content: "What is the weather in Seoul?" }];

// "required" makes the model call a tool; with "auto" it decides for itself.
const asked = await client.chat.completions.create({
  model,
  messages,
  tools,
  tool_choice: "required",
  temperature: 0,
});
messages.push(asked.choices[0].message);
for (const call of asked.choices[0].message.tool_calls) {
  // What the model wrote is input like any other: check it before you act on it.
  const result = getWeather(JSON.parse(call.function.arguments));
  console.log(`${call.function.name}(${call.function.arguments}) -> ${result}`);
  messages.push({ role: "tool", tool_call_id: call.id, content: result });
}

const answer = await client.chat.completions.create({ model, messages, tools, max_completion_tokens: 100 });
console.log(answer.choices[0].message.content);
