"""`/openapi.json`: routes read their bodies themselves, so their schemas are added here."""

from collections.abc import Sequence
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mulgil.catalogue import FALLBACK_HEADER, VARIANT_HEADER
from mulgil.schemas.error import ErrorBody
from mulgil.telemetry.observation import Cached

_REF = "#/components/schemas/{model}"


_STRING = {"type": "string"}
_OF_AN_ANSWER = {
    "x-mulgil-cache": {
        "description": "Where the answer is from, for a model whose answers are kept, see docs/cache.md",
        "schema": {"type": "string", "enum": list(get_args(Cached))},
    },
    "x-mulgil-truncated-messages": {
        "description": "How many messages were left out, so that the conversation fits, see docs/context.md",
        "schema": {"type": "integer"},
    },
    VARIANT_HEADER: {"description": "The variant of the model that answers, see docs/variants.md", "schema": _STRING},
    FALLBACK_HEADER: {"description": "What answers instead of the model, see docs/fallback.md", "schema": _STRING},
}
_OF_A_REQUEST = {
    "name": VARIANT_HEADER,
    "in": "header",
    "required": False,
    "description": "The variant of the model that is to answer, for keys that may choose, see docs/variants.md",
    "schema": _STRING,
}


def documented(
    *,
    response: type[BaseModel] | None = None,
    request: type[BaseModel] | None = None,
    streams: bool = False,
    status: str = "200",
    answers: bool = False,
) -> dict[str, Any]:
    """The `openapi_extra` of a route with these bodies; any failure has the error envelope.

    Where a model *answers*, headers say what became of the request on its way.
    """
    content: dict[str, Any] = {}
    if response is not None:
        content["application/json"] = {"schema": _reference(response)}
    if streams:
        content["text/event-stream"] = {}  # OpenAPI 3.1 cannot say what an event is
    extra: dict[str, Any] = {
        "responses": {
            status: {"description": "Done", "content": content},
            "default": {
                "description": "Failure, see docs/errors.md",
                "content": {"application/json": {"schema": _reference(ErrorBody)}},
            },
        }
    }
    if answers:
        extra["responses"][status]["headers"] = _OF_AN_ANSWER
        extra["parameters"] = [_OF_A_REQUEST]
    if request is not None:
        extra["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(request)}},
        }
    return extra


def documented_stream(query: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a GET route that streams events, asked for by the fields of *query*."""
    events: dict[str, Any] = {"text/event-stream": {}}
    failure = {"application/json": {"schema": _reference(ErrorBody)}}
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": schema}
            for name, schema in query.model_json_schema()["properties"].items()
        ],
        "responses": {
            "200": {"description": "Done", "content": events},
            "default": {"description": "Failure, see docs/errors.md", "content": failure},
        },
    }


def install(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Make *app* describe itself, with *models* and all they refer to as components."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            described: list[type[BaseModel]] = [*models, ErrorBody]
            _, definitions = models_json_schema([(model, "validation") for model in described], ref_template=_REF)
            for operation in (one for path in schema["paths"].values() for one in path.values()):
                operation["responses"].pop("422", None)  # FastAPI's own; ours is in "default"
            schema["components"] = {
                "schemas": definitions["$defs"],
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            }
            schema["security"] = [{"key": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
