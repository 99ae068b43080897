"""Tool calls and reasoning, through vLLM's parsers."""

from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest as ParserRequest
from vllm.parser import ParserManager

from mulgil.aside import Aside
from mulgil.engine.base import TextRequest
from mulgil.engine.vllm.outputs import Fold, ParserFold
from mulgil.engine.vllm.sampling import structured_outputs
from mulgil.errors import UnsupportedParameterError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.settings import EngineSettings


class AnswerParsers:
    """Makes the parsers that take a model's answers apart.

    Args:
        llm: the `AsyncLLM`.
        settings: which of vLLM's parsers know the model's format.

    Raises:
        TypeError: a parser cannot work with the model's tokenizer.
    """

    def __init__(self, llm: Any, settings: EngineSettings) -> None:
        self._model_config = llm.model_config
        self._tokenizer = llm.renderer.tokenizer
        self._calls = settings.tool_call_parser is not None
        self._reasons = settings.reasoning_parser is not None
        self._aside = Aside()
        self._strict: Any
        self._lenient: Any
        # "parameter": arguments keep to their schema although no client asked for it, as far as it can be enforced.
        self._strict, self._lenient = (
            ParserManager.get_parser(
                tool_parser_name=settings.tool_call_parser,
                reasoning_parser_name=settings.reasoning_parser,
                enable_auto_tools=self._calls,
                tool_strict_level=level,
                model_name=llm.model_config.model,
                is_harmony=llm.model_config.hf_config.model_type == "gpt_oss",
                tokenizer=self._tokenizer,
            )
            for level in ("parameter", "auto")
        )

    def check(self, request: ChatCompletionRequest) -> None:
        """Refuse tools where nothing could read the model's calls.

        Raises:
            UnsupportedParameterError: `tool_call_parser` is not set.
        """
        if request.offered and not self._calls:
            raise UnsupportedParameterError(
                "Unsupported parameter: 'tools' is not supported with this model (no tool call parser is set up).",
                param="tools",
            )

    async def adjusted(self, request: TextRequest, *, strict: bool) -> Any:
        """vLLM's request with the constraint that its parser wants; None where nothing is to be parsed.

        Args:
            request: what the client asked for.
            strict: arguments must keep to their schema, whether or not the client said so.
        """
        if not self._parses(request):
            return None
        assert isinstance(request, ChatCompletionRequest)
        return await self._aside.run(lambda: self._adjusted(request, strict=strict), size=request.weight)

    def may_be_lenient(self, request: TextRequest) -> bool:
        """A schema that cannot be enforced is no reason to refuse tools that nobody called strict."""
        if not self._parses(request) or not isinstance(request, ChatCompletionRequest) or not request.offered:
            return False
        return structured_outputs(request) is None and not any(function.strict for function in request.offered)

    def folds(self, request: TextRequest, adjusted: Any, prompt_token_ids: list[int]) -> list[Fold] | None:
        """One parser for each choice; None where nothing is to be parsed."""
        if adjusted is None:
            return None
        assert isinstance(request, ChatCompletionRequest)

        def count(token_ids: list[int]) -> int:
            # A parser that has followed a stream counts what it saw, which depends on the steps.
            return int(self._made(self._strict, adjusted.tools, request).count_reasoning_tokens(token_ids))

        return [
            ParserFold(
                self._made(self._strict, adjusted.tools, request),
                adjusted,
                prompt_token_ids,
                one_call=request.parallel_tool_calls is False,
                count_reasoning=count if self._reasons else None,
            )
            for _ in range(request.choices)
        ]

    def _adjusted(self, request: ChatCompletionRequest, *, strict: bool) -> Any:
        ours = _parser_request(request)
        return self._made(self._strict if strict else self._lenient, ours.tools, request).adjust_request(ours)

    def _made(self, parser: Any, tools: Any, request: ChatCompletionRequest) -> Any:
        options = request.chat_template_kwargs or {}
        return parser(self._tokenizer, tools, chat_template_kwargs=options, model_config=self._model_config)

    def _parses(self, request: TextRequest) -> bool:
        return isinstance(request, ChatCompletionRequest) and (self._reasons or bool(request.offered))


def _parser_request(request: ChatCompletionRequest) -> Any:
    tools = [{"type": "function", "function": function.model_dump(exclude_none=True)} for function in request.offered]
    choice: Any = "none"
    if tools:
        must = request.must_call
        named = {"type": "function", "function": {"name": must}}
        choice = named if isinstance(must, str) else "required" if must else "auto"
    # The parser looks at the history for nothing but the number of calls in it.
    history: list[dict[str, Any]] = [{"role": message.role, "content": ""} for message in request.messages]
    for entry, message in zip(history, request.messages, strict=True):
        if message.tool_calls:
            entry["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        if message.tool_call_id:
            entry["tool_call_id"] = message.tool_call_id
    return ParserRequest.model_validate(
        {
            "messages": history,
            "tools": tools or None,
            "tool_choice": choice if tools else None,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "structured_outputs": structured_outputs(request),
        }
    )
