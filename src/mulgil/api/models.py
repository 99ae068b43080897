"""`GET /v1/models`."""

import time
from collections.abc import Callable, Iterable

from fastapi import APIRouter
from starlette.responses import Response

from mulgil.api.errors import JSONBody
from mulgil.api.openapi import documented
from mulgil.errors import ModelNotFoundError
from mulgil.schemas.models import Model, ModelList


def routes(names: Callable[[], Iterable[str]]) -> APIRouter:
    """The model routes for what *names* gives at the moment."""
    router = APIRouter()
    started = int(time.time())

    @router.get("/v1/models", summary="List the models", openapi_extra=documented(response=ModelList))
    async def list_models() -> Response:
        return JSONBody(ModelList(data=[Model(id=name, created=started) for name in names()]).model_dump())

    @router.get("/v1/models/{name:path}", summary="Show a model", openapi_extra=documented(response=Model))
    async def retrieve_model(name: str) -> Response:
        if name not in names():
            raise ModelNotFoundError(name)
        return JSONBody(Model(id=name, created=started).model_dump())

    return router
