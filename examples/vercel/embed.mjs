// Find the text that is nearest to a question, with the Vercel AI SDK.
// Needs: npm install ai @ai-sdk/openai-compatible (Node 22 or newer).
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { cosineSimilarity, embed, embedMany } from "ai";

const mulgil = createOpenAICompatible({
  name: "mulgil",
  baseURL: process.env.MULGIL_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.MULGIL_API_KEY ?? "the key that scripts/serve printed",
});
const model = mulgil.embeddingModel(process.env.MULGIL_EMBEDDING_MODEL ?? "all-minilm-l6-v2");

const texts = ["Rivers carry water to the sea.", "Bread is baked in an oven.", "Trains run on rails."];
const { embeddings } = await embedMany({ model, values: texts });
const { embedding: question } = await embed({ model, value: "Where does the water of rivers go?" });

const ranked = texts.map((text, index) => [cosineSimilarity(question, embeddings[index]), text]);
for (const [nearness, text] of ranked.sort((a, b) => b[0] - a[0])) console.log(nearness.toFixed(3), text);
