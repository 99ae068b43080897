"""What `mulgil quickstart` fills in when it is missing: a demo model, a key, and words to copy."""

import os
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr

from mulgil.auth.keys import new_key
from mulgil.demo_model import EMBEDDER_NAME, prepare_demo_embedder, prepare_demo_model
from mulgil.settings import Settings

KEY_FILE = Path(".mulgil/quickstart-key")


def completed(settings: Settings, *, report: Callable[[str], None], embeddings: bool = False) -> Settings:
    """*settings* with what a first start needs and they lack: a key, a model, and one for *embeddings* if wanted.

    Raises:
        DemoModelError: the demo model cannot be had.
    """
    missing: dict[str, object] = {}
    if not (settings.api_keys or settings.keys_file or settings.redis_url or settings.insecure):
        missing["api_keys"] = (SecretStr(_kept_key()),)
    if settings.engine == "vllm":
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if settings.model is None:
            missing["model"] = str(prepare_demo_model(cache_folder(), report))
            missing["tool_call_parser"] = settings.tool_call_parser or "hermes"
            # In GiB. By default vLLM on CPU takes most of the memory it finds.
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if embeddings and not (settings.embeddings_model or settings.embeddings_url):
        real = settings.engine == "vllm"
        missing["embeddings_model"] = str(prepare_demo_embedder(cache_folder(), report)) if real else EMBEDDER_NAME
    return settings.model_copy(update=missing)


def cache_folder() -> Path:
    """Where the demo models are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mulgil"


def snippet(url: str, settings: Settings) -> str:
    """Two ready-made calls of the server at *url*; they show the key that they need."""
    model = settings.model_names[0]
    plain = [key for entry in settings.api_keys if not (key := entry.get_secret_value()).startswith("sha256:")]
    shown = plain[0] if plain else "YOUR_KEY"
    return f"""
Mulgil serves {model} at {url}

curl {url}/chat/completions \\
  -H 'Authorization: Bearer {shown}' -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "temperature": 0,
       "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

from openai import OpenAI  # pip install openai
client = OpenAI(base_url="{url}", api_key="{shown}")
for chunk in client.chat.completions.create(
    model="{model}", temperature=0, stream=True,
    messages=[{{"role": "user", "content": "What is the capital of France?"}}],
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
""" + (_embeddings_snippet(url, settings.embedding_names[0], shown) if settings.embedding_names else "")


def _embeddings_snippet(url: str, model: str, key: str) -> str:
    return f"""
curl {url}/embeddings \\
  -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "input": ["She eats bread.", "The sea is deep."]}}'
"""


def _kept_key() -> str:
    """The key of the last quick start, or a new one, readable by this user alone."""
    try:
        return KEY_FILE.read_text().strip()
    except FileNotFoundError:
        key = new_key()
        KEY_FILE.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
        return key
