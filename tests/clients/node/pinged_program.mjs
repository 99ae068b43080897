// Reads slow streams full of comments, with ids and without, in every pacing. Prints the texts by name.
import OpenAI from "openai";

const told = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: `${told.gateway}/v1`, apiKey: told.key, maxRetries: 0 });
const texts = {};
for (const [name, stream_options] of Object.entries(told.options)) {
  for (const accept of ["application/json", "text/event-stream"]) {
    const stream = await client.chat.completions.create(
      { model: told.model, messages: [{ role: "user", content: told.prompt }], stream: true, stream_options },
      { headers: { accept } },
    );
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
    texts[`${name}, ${accept}`] = text;
  }
}
console.log(JSON.stringify(texts));
