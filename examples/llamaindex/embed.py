"""Search by meaning with LlamaIndex. Needs: pip install llama-index-embeddings-openai-like."""

import os

from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

embedder = OpenAILikeEmbedding(
    api_base=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    model_name=os.environ.get("MULGIL_EMBEDDING_MODEL", "all-minilm-l6-v2"),
)

texts = ["Rivers carry water to the sea.", "Bread is baked in an oven.", "Trains run on rails."]
index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=embedder)
retriever = index.as_retriever(embed_model=embedder, similarity_top_k=3)
for found in retriever.retrieve("Where does the water of rivers go?"):
    print(f"{found.score:+.3f}  {found.text}")
