"""The functions that a chat request offers, and how the model may choose among them."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from mulgil.errors import InvalidFieldError, UnsupportedValueError
from mulgil.schemas.base import Listed, RequestModel, limits_of, missing

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]


class FunctionDefinition(RequestModel):
    """A function that the model may ask to have called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """The arguments must keep to the schema."""


class Tool(RequestModel):
    """An offered tool; only functions can be served."""

    type: Literal["function", "custom"]
    function: FunctionDefinition | None = None

    @model_validator(mode="after")
    def _has_its_function(self) -> Self:
        if self.type == "function" and self.function is None:
            raise missing("function")
        return self


class _Named(RequestModel):
    name: FunctionName


class NamedTool(RequestModel):
    """One function, by name."""

    type: Literal["function", "custom"] = "function"
    function: _Named | None = None

    @model_validator(mode="after")
    def _has_its_name(self) -> Self:
        if self.type == "function" and self.function is None:
            raise missing("function")
        return self

    @property
    def name(self) -> str:
        """Of the function."""
        return self.function.name if self.function else ""


class _Allowed(RequestModel):
    mode: Literal["auto", "required"]
    tools: Listed[NamedTool] = Field(min_length=1, max_length=128)


class AllowedTools(RequestModel):
    """Some of the offered tools, without changing the list of all."""

    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


def _choice_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<mode>"
    if isinstance(value, dict):
        return "<allowed>" if value.get("type") == "allowed_tools" else "<named>"
    return None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")]
    | Annotated[NamedTool, Tag("<named>")]
    | Annotated[AllowedTools, Tag("<allowed>")],
    Discriminator(
        _choice_kind,
        custom_error_type="invalid_content",
        custom_error_message="expected 'none', 'auto', 'required' or an object",
    ),
]


class ToolFields(RequestModel):
    """What a chat request says about tools."""

    tools: Listed[Tool] | None = Field(default=None, min_length=1)
    tool_choice: ToolChoice | None = None
    """Default: `auto` where there are tools."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""

    @field_validator("tools", mode="before")
    @classmethod
    def _not_too_many_tools(cls, value: Any, info: ValidationInfo) -> Any:
        most = limits_of(info).max_tools
        if isinstance(value, list) and len(value) > most:
            raise PydanticKnownError(
                "too_long", {"field_type": "List", "max_length": most, "actual_length": len(value)}
            )
        return value

    @property
    def offered(self) -> list[FunctionDefinition]:
        """The functions that the model may call; none with `tool_choice: "none"`."""
        functions = [tool.function for tool in self.tools or () if tool.function]
        if self.tool_choice == "none":
            return []
        if isinstance(self.tool_choice, AllowedTools):
            allowed = {tool.name for tool in self.tool_choice.allowed_tools.tools}
            return [function for function in functions if function.name in allowed]
        return functions

    @property
    def must_call(self) -> str | bool:
        """The name of the function that must be called, or whether any must."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.name
        if isinstance(self.tool_choice, AllowedTools):
            return self.tool_choice.allowed_tools.mode == "required"
        return self.tool_choice == "required"


def check_tools(request: ToolFields) -> None:
    """Refuse tools that are no functions, and choices of what is not offered.

    Raises:
        UnsupportedValueError: a custom tool.
        InvalidFieldError: two functions of one name, or a choice without its tool.
    """
    names: set[str] = set()
    for i, tool in enumerate(request.tools or ()):
        if tool.type != "function" or tool.function is None:
            raise _unsupported(f"tools[{i}].type")
        if tool.function.name in names:
            raise _invalid(f"tools[{i}].function.name", "is the name of another tool too")
        names.add(tool.function.name)
    choice = request.tool_choice
    if choice not in (None, "none", "auto") and not names:
        raise _invalid("tool_choice", "is only allowed where 'tools' are given")
    chosen: list[tuple[str, NamedTool]] = []
    if isinstance(choice, NamedTool):
        chosen = [("tool_choice", choice)]
    elif isinstance(choice, AllowedTools):
        at = "tool_choice.allowed_tools.tools"
        chosen = [(f"{at}[{i}]", tool) for i, tool in enumerate(choice.allowed_tools.tools)]
    for where, named in chosen:
        if named.type != "function":
            raise _unsupported(f"{where}.type")
        if named.name not in names:
            raise _invalid(f"{where}.function.name", "is not the name of one of the 'tools'")


def _unsupported(param: str) -> UnsupportedValueError:
    return UnsupportedValueError("Unsupported value: only tools of type 'function' are served.", param=param)


def _invalid(param: str, reason: str) -> InvalidFieldError:
    return InvalidFieldError(f"Invalid '{param}': {reason}.", param=param, code="invalid_value")
