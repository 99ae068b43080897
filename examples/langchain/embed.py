"""Search by meaning with LangChain. Needs: pip install langchain-openai."""

import os

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

embeddings = OpenAIEmbeddings(
    base_url=os.environ.get("MULGIL_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("MULGIL_API_KEY", "the key that scripts/serve printed"),
    model=os.environ.get("MULGIL_EMBEDDING_MODEL", "all-minilm-l6-v2"),
    # Otherwise LangChain sends numbers of OpenAI's own vocabulary, which mean nothing to another model.
    check_embedding_ctx_length=False,
)

store = InMemoryVectorStore.from_texts(
    ["Rivers carry water to the sea.", "Bread is baked in an oven.", "Trains run on rails."], embeddings
)
for document, nearness in store.similarity_search_with_score("Where does the water of rivers go?", k=3):
    print(f"{nearness:+.3f}  {document.page_content}")
