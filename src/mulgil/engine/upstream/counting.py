"""How many tokens a prompt has at an upstream: told by it, or a bound that is certainly not less."""

import time
from typing import Any

import orjson

from mulgil.engine.base import TextRequest
from mulgil.engine.embedding import in_order
from mulgil.engine.upstream.body import to_count
from mulgil.engine.upstream.calling import Call, Caller, NoSuchRouteError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.upstreams import UpstreamOptions

_COUNTED_AT_ONCE = 8
_LOOKED_FOR_AGAIN_AFTER = 300.0  # seconds; a server that is replaced may have it then
# No tokenizer in use makes more tokens than a text has bytes in UTF-8. The rest is what templates put around messages,
# and before all of them; a description of tools may be written out with more room between its parts.
_FOR_A_PROMPT = 512
_FOR_A_MESSAGE = 64
_FOR_A_TEXT = 8


class PromptCounter:
    """Counts prompts as one upstream does.

    Args:
        caller: of the upstream.
        options: of the upstream.
    """

    def __init__(self, caller: Caller, options: UpstreamOptions) -> None:
        self._caller = caller
        self._model = options.model
        self._given = options.context
        self._told: int | None = None
        self._at_root: bool | None = None
        self._looked_for = -_LOOKED_FOR_AGAIN_AFTER

    @property
    def exact(self) -> bool:
        """The upstream has told the last count itself."""
        return self._at_root is not None

    @property
    def context(self) -> int | None:
        """Prompt and answer together, in tokens; None where nobody has said."""
        known = [one for one in (self._given, self._told) if one is not None]
        return min(known, default=None)

    async def count(self, request: TextRequest) -> list[int]:
        """Tokens of each prompt of *request*.

        Raises:
            ContextLengthError: the upstream says that it does not fit.
            MulgilError: the upstream refuses it, or cannot be asked.
        """
        if isinstance(request, ChatCompletionRequest):
            count = await self._ask(to_count(request, self._model))
            return [_bound_of_chat(request) if count is None else count]

        async def of_prompt(_: int, prompt: str | list[int]) -> int:
            if not isinstance(prompt, str):
                return len(prompt)
            count = await self._ask({"model": self._model or request.model, "prompt": prompt})
            return len(prompt.encode()) + _FOR_A_TEXT if count is None else count

        return await in_order(of_prompt, request.prompts, at_once=_COUNTED_AT_ONCE)

    async def learn(self, model: str) -> None:
        """Ask for nothing but the context.

        Raises:
            MulgilError: as `count`.
        """
        await self._ask({"model": self._model or model, "prompt": "a"})

    async def _ask(self, body: dict[str, Any]) -> int | None:
        """What its tokenize endpoint says; None where it has none."""
        if self._at_root is None and time.monotonic() - self._looked_for < _LOOKED_FOR_AGAIN_AFTER:
            return None
        call = Call("/tokenize", orjson.dumps(body), "prompt" if "prompt" in body else "messages", may_be_absent=True)
        for at_root in (False, True) if self._at_root is None else (self._at_root,):
            try:
                answer = await self._caller.asked(call, at_root=at_root)
            except NoSuchRouteError:
                continue
            count, limit = answer.get("count"), answer.get("max_model_len")
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                continue  # llama.cpp's, which takes other fields, counts nothing
            self._at_root = at_root
            self._told = limit if isinstance(limit, int) and limit > 0 else None
            return count
        self._at_root, self._looked_for = None, time.monotonic()
        return None


def _bound_of_chat(request: ChatCompletionRequest) -> int:
    """Not less than the prompt has, in tokens."""
    fields = to_count(request, None)
    tools = orjson.dumps(fields.get("tools", []), option=orjson.OPT_INDENT_2)
    messages = orjson.dumps(fields["messages"])
    return len(messages) + 2 * len(tools) + _FOR_A_MESSAGE * len(request.messages) + _FOR_A_PROMPT
