"""The list of models, which clients and probes read without a key."""

from collections.abc import AsyncGenerator

import pytest
from harness import Server, raw_request, serving, settings
from openai import AsyncOpenAI
from raw import ask, error_of, request_line

NAMES = ("demo", "org/model-7b", "name with spaces", "모델", "a:b@c+d&e=f?g#h%2Fi", "../etc")


@pytest.fixture(scope="module")
async def named() -> AsyncGenerator[Server]:
    """A gateway whose model has many names."""
    async with serving(settings(served_model_name=NAMES)) as running:
        yield running


async def test_the_models_are_listed_in_openais_form(named: Server) -> None:
    answer = await named.client.get("/v1/models")
    listed = answer.json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == list(NAMES)
    created = {model["created"] for model in listed["data"]}
    assert len(created) == 1
    assert isinstance(created.pop(), int)
    assert all(model["object"] == "model" and model["owned_by"] == "mulgil" for model in listed["data"])


async def test_a_model_is_retrieved_by_the_official_client_whatever_its_name(named: Server) -> None:
    async with AsyncOpenAI(base_url=f"{named.url}/v1", api_key="none") as client:
        listed = {model.id: model async for model in client.models.list()}
        for name in NAMES:
            assert await client.models.retrieve(name) == listed[name]


@pytest.mark.parametrize("path", ["org/model-7b", "org%2Fmodel-7b", "org%2fmodel%2D7b"])
async def test_a_slash_in_a_name_may_be_encoded_or_not(named: Server, path: str) -> None:
    answer = await ask(named, request_line("GET", f"/v1/models/{path}"))
    assert answer.status_code == 200
    assert b'"id":"org/model-7b"' in answer.content


@pytest.mark.parametrize("name", NAMES)
async def test_every_listed_name_can_be_asked(named: Server, name: str) -> None:
    answer = await named.chat(model=name)
    assert answer.status_code == 200
    assert answer.json()["model"] == name


@pytest.mark.parametrize("path", ["nope", "", "demo/", "DEMO", "%ff", "%00", "a%0db", "x" * 10_000])
async def test_an_unknown_model_is_a_404_like_one_that_is_not_for_this_key(named: Server, path: str) -> None:
    answer = await ask(named, raw_request(b"", path=f"/v1/models/{path}").replace(b"POST", b"GET", 1))
    assert answer.status_code == 404
    error = error_of(answer)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert str(error["message"]).endswith("does not exist or you do not have access to it.")
