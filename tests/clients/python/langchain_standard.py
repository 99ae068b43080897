"""LangChain's own tests of chat models, against a running gateway: `pytest` in the environment of openai 3 runs them.

They are about the road between LangChain and the model, and a few want an answer that makes sense. The simulated
engine gives that one when its script is behind the question.
"""

import json
import os
from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

JOKE = {"setup": "Why do cats like rivers?", "punchline": "They do not. 🐈"}


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


SCRIPTS = {
    "magic_function(3)": calling("magic_function", input=3),
    "the weather in San Francisco": calling("get_weather", location="San Francisco, CA"),
    "你好啊集团": calling("unicode_customer", customer_name="你好啊集团", description="技术"),
    "こんにちは株式会社": calling("unicode_customer", customer_name="こんにちは株式会社", description="日本"),
    "Return the result as a JSON": {"text": json.dumps(JOKE)},
}


class PromptedChatOpenAI(ChatOpenAI):  # type: ignore[misc]  # untyped in mypy's own environment
    """`ChatOpenAI` whose questions have the engine's script behind them, where there is one."""

    def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload(*args, **kwargs)
        last = payload["messages"][-1]
        for phrase, script in SCRIPTS.items():
            if last["role"] == "user" and phrase in last["content"]:
                last["content"] += f" /simulate {json.dumps(script)}"
        return payload


class TestMulgil(ChatModelIntegrationTests):  # type: ignore[misc]  # untyped in mypy's own environment
    """What a model can see or hear besides text is not claimed, so those tests are skipped."""

    @property
    def chat_model_class(self) -> type[PromptedChatOpenAI]:
        return PromptedChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {
            "base_url": os.environ["MULGIL_BASE_URL"],
            "api_key": os.environ["MULGIL_API_KEY"],
            "model": os.environ["MULGIL_MODEL"],
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return os.environ["MULGIL_OTHER_MODEL"]
