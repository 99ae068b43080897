"""From messages and texts to the token ids that the engine is given."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.inputs import tokens_input
from vllm.renderers import ChatParams, TokenizeParams

from mulgil.aside import Aside
from mulgil.engine.base import TextRequest, check_vocabulary
from mulgil.errors import ContextLengthError, InvalidFieldError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.messages import ChatMessage
from mulgil.schemas.tokenize import TokenizeRequest

_AT_ONCE = 4 * 1024  # characters, which take template and tokenizer less than 2 ms
_LONGEST_CHARACTER = 4  # bytes, hence tokens
_WITH_MARKS = 24  # times as many tokens, at most: a mark has 22 bytes, and between two of them there is text
_TAG = re.compile(r"</?\w+>")
_TEMPLATE_OPTIONS = {"tokenize": False, "add_generation_prompt": True, "continue_final_message": False}


class PromptRenderer:
    """Renders and tokenises prompts for one engine.

    Args:
        llm: the `AsyncLLM`.
        template: a chat template instead of the model's own.
    """

    def __init__(self, llm: Any, template: str | None) -> None:
        self._llm = llm
        self._template = template
        self._salt = secrets.token_bytes(16)
        self._aside = Aside()
        self.tokenizer: Any = llm.renderer.tokenizer
        self._vocabulary = int(llm.model_config.get_vocab_size())
        # Runs of blanks are tokens of some vocabularies; they control nothing.
        control = [token for token in self.tokenizer.get_added_vocab() if len(token) > 1 and token.strip()]
        self._control = _any_of(control)
        # Templates look for tags like </think> in what the model said earlier. No turn ends with one.
        self._control_of_assistants = _any_of([token for token in control if not _TAG.fullmatch(token)])

    def warm_up(self) -> None:
        """Render one conversation, so that the first request need not wait until the template is compiled."""
        self._llm.renderer.warmup(ChatParams(chat_template=self._template, chat_template_kwargs=_TEMPLATE_OPTIONS))

    @property
    def _limit(self) -> int:
        return int(self._llm.model_config.max_model_len)

    async def chat(self, request: ChatCompletionRequest, *, tenant: str, free: int = 1) -> dict[str, Any]:
        """The engine input for a conversation, by the chat template.

        Text that spells a control token of the model is tokenised as the text it is: no message can
        forge the end of its turn, and nothing of the conversation is changed or lost.

        Raises:
            ContextLengthError: fewer than *free* tokens are left for an answer.
            VLLMValidationError: the template refuses the conversation.
        """
        mark = f"\ue000{secrets.token_hex(8)}\ue001"
        messages, options, forged = await self._aside.run(lambda: self._marked(request, mark), size=request.weight)
        try:
            most = self._limit * (_WITH_MARKS if forged else 1)
            rendered = await self._rendered(messages, options, tenant=tenant, size=request.weight, most=most)
        except VLLMValidationError as error:
            raise self._overflow(error, "messages") from error
        if forged:
            ids = await asyncio.to_thread(self._tokenised_apart, rendered["prompt"].split(mark))
            rendered = tokens_input(ids, prompt=rendered["prompt"].replace(mark, ""), cache_salt=rendered["cache_salt"])
        self._check_room(rendered, "messages", free)
        return dict(rendered)

    async def texts(self, prompts: Sequence[str | list[int]], *, tenant: str) -> list[dict[str, Any]]:
        """The engine inputs for prompts that are taken as they are, control tokens included.

        Raises:
            ContextLengthError: a prompt leaves no room for an answer.
            InvalidFieldError: a prompt has no token, or a token id that the model does not have.
        """
        for prompt in prompts:
            if isinstance(prompt, list):
                check_vocabulary(prompt, self._vocabulary, param="prompt")
        try:
            inputs = await self._texts_rendered(prompts, {"cache_salt": self._cache_salt(tenant)})
        except VLLMValidationError as error:
            raise self._overflow(error, "prompt") from error
        for one in inputs:
            self._check_room(one, "prompt")
            if not one["prompt_token_ids"]:
                raise InvalidFieldError(
                    "Invalid 'prompt': a prompt has at least one token.", param="prompt", code="invalid_value"
                )
        return inputs

    async def _texts_rendered(self, prompts: Sequence[str | list[int]], extras: dict[str, Any]) -> list[dict[str, Any]]:
        renderer = self._llm.renderer
        asked = (
            [{"prompt": one} if isinstance(one, str) else {"prompt_token_ids": one} for one in prompts],
            renderer.default_cmpl_tok_params,
        )
        if sum(map(len, prompts)) <= _AT_ONCE:
            return list(renderer.render_cmpl(*asked, prompt_extras=extras))
        return list(await renderer.render_cmpl_async(*asked, prompt_extras=extras))

    def check_ids(self, request: TextRequest) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            InvalidFieldError: there is one.
        """
        check_vocabulary([int(token) for token in request.logit_bias or ()], self._vocabulary, param="logit_bias")
        check_vocabulary(request.stop_token_ids or (), self._vocabulary, param="stop_token_ids")

    async def encode(self, request: TokenizeRequest) -> list[int]:
        """The token ids of a text or a conversation.

        Raises:
            ContextLengthError: the conversation does not fit.
            VLLMValidationError: the template refuses the conversation.
        """
        if request.chat is not None:
            rendered = await self.chat(request.chat, tenant="")
            return list(rendered["prompt_token_ids"])
        encode = partial(self.tokenizer.encode, request.prompt, add_special_tokens=request.add_special_tokens)
        return list(await asyncio.to_thread(encode))

    async def decode(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token; a character that several make up is the last one's.

        Raises:
            InvalidFieldError: there is no such token.
        """
        check_vocabulary(token_ids, self._vocabulary, param="tokens")
        return await asyncio.to_thread(self._texts_of, token_ids)

    def _texts_of(self, token_ids: Sequence[int]) -> list[str]:
        texts: list[str] = []
        begin = 0
        for end in range(1, len(token_ids) + 1):
            text = self.tokenizer.decode(token_ids[begin:end], skip_special_tokens=False)
            half = text.endswith("\N{REPLACEMENT CHARACTER}") and end - begin < _LONGEST_CHARACTER
            if half and end < len(token_ids):
                texts.append("")
            else:
                texts.append(text)
                begin = end
        return texts

    def _marked(self, request: ChatCompletionRequest, mark: str) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        """The messages and the options for the template, and whether *mark* had to be put into them."""
        messages = [self._for_template(message) for message in request.messages]
        options = self._options(request)
        marked = [
            _guarded(message, self._control_of_assistants if message["role"] == "assistant" else self._control, mark)
            for message in messages
        ]
        marked_options = _guarded(options, self._control, mark)
        return marked, marked_options, marked != messages or marked_options != options

    async def _rendered(
        self, messages: list[dict[str, Any]], options: dict[str, Any], *, tenant: str, size: int, most: int
    ) -> Any:
        renderer = self._llm.renderer
        asked = (
            [messages],
            ChatParams(chat_template=self._template, chat_template_kwargs={**options, **_TEMPLATE_OPTIONS}),
            TokenizeParams(max_total_tokens=most, add_special_tokens=False),
        )
        extras = {"cache_salt": self._cache_salt(tenant)}
        if size <= _AT_ONCE or self._aside.takes(size):
            # Only parts of the other way leave the event loop, and changing threads takes longer than a short text.
            render = partial(renderer.render_chat, *asked, prompt_extras=extras)
            _, (rendered,) = await self._aside.run(render, size=size)
        else:
            _, (rendered,) = await renderer.render_chat_async(*asked, prompt_extras=extras)
        return rendered

    def _options(self, request: ChatCompletionRequest) -> dict[str, Any]:
        options: dict[str, Any] = dict(request.chat_template_kwargs or {})
        if request.reasoning_effort is not None:
            options.setdefault("reasoning_effort", request.reasoning_effort)
            # Some templates think only when told to; the others do not know the word.
            options.setdefault("enable_thinking", request.reasoning_effort != "none")
        if request.offered:
            options["tools"] = [
                {"type": "function", "function": function.model_dump(exclude_none=True)} for function in request.offered
            ]
        return options

    def _for_template(self, message: ChatMessage) -> dict[str, Any]:
        role = "system" if message.role == "developer" else message.role
        rendered: dict[str, Any] = {"role": role, "content": message.text}
        if message.name is not None:
            rendered["name"] = message.name
        if message.reasoning_content is not None:
            rendered["reasoning"] = message.reasoning_content
        if message.tool_calls:
            rendered["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        if message.tool_call_id is not None:
            rendered["tool_call_id"] = message.tool_call_id
        return rendered

    def _tokenised_apart(self, pieces: list[str]) -> list[int]:
        return [token for piece in pieces for token in self.tokenizer.encode(piece, add_special_tokens=False)]

    def _check_room(self, rendered: Any, param: str, free: int = 1) -> None:
        if (count := len(rendered["prompt_token_ids"])) + free > self._limit:
            raise ContextLengthError(limit=self._limit, prompt_tokens=count, param=param)

    def _overflow(self, error: VLLMValidationError, param: str) -> Exception:
        if error.parameter not in ("input_tokens", "input_text"):
            return error  # type: ignore[no-any-return]  # vLLM is untyped here
        # vLLM stops counting there.
        return ContextLengthError(limit=self._limit, prompt_tokens=self._limit + 1, at_least=True, param=param)

    def _cache_salt(self, tenant: str) -> str:
        """Keeps prefix-cache timing from telling one tenant about another's prompts."""
        return hashlib.blake2b(tenant.encode(), key=self._salt, digest_size=16).hexdigest()


def _any_of(tokens: Sequence[str]) -> "re.Pattern[str] | None":
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if tokens else None


def _guarded(value: Any, control: "re.Pattern[str] | None", mark: str) -> Any:
    """*value* with *mark* inside every control token that a text in it spells."""
    if control is None:
        return value
    if isinstance(value, str):
        return control.sub(lambda found: found[0][0] + mark + found[0][1:], value)
    if isinstance(value, list):
        return [_guarded(entry, control, mark) for entry in value]
    if isinstance(value, dict):
        return {_guarded(key, control, mark): _guarded(entry, control, mark) for key, entry in value.items()}
    return value
