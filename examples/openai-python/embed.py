"""Find the text that is nearest to a question. Needs: pip install openai."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
)
texts = ["Rivers carry water to the sea.", "Bread is baked in an oven.", "Trains run on rails."]
question = "Where does the water of rivers go?"

response = client.embeddings.create(
    model=os.environ.get("MULGIL_EMBEDDING_MODEL", "all-minilm-l6-v2"), input=[question, *texts]
)
asked, *vectors = [one.embedding for one in response.data]

# Vectors have length one, so that their product is the cosine of the angle between them.
nearness = [sum(a * b for a, b in zip(asked, vector, strict=True)) for vector in vectors]
for near, text in sorted(zip(nearness, texts, strict=True), reverse=True):
    print(f"{near:+.3f}  {text}")
