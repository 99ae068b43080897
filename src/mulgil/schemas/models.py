"""`GET /v1/models` and `GET /v1/models/{id}`."""

from typing import Literal

from mulgil.schemas.base import ResponseModel


class Model(ResponseModel):
    """A name under which the model is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mulgil"


class ModelList(ResponseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[Model]
