"""Variants of a model as clients meet them: under one name, always the same one, and nothing hidden."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import KEY, MODEL, UNLIMITED, Server, chat_body, events, script, serving, settings
from pydantic import SecretStr
from sockets import connected, turn

HEADER = "x-mulgil-variant"
KEYS = tuple(f"sk-mg-key-{number}-of-the-variants" for number in range(40))
OF_MODELS = """
[models.mix.variants.base]
weight = 1
[models.mix.variants.slow]
weight = 1
chunking = "sentence"
sampling = { temperature = 0, top_p = 0.5 }
[models.mix.variants.secret]
weight = 0
[models.mix]
cache = true
[models.short]
alias = true
truncation = "auto"
"""


def config(folder: Path, tier: str = "choose_variant = true\n") -> Path:
    path = folder / "mulgil.toml"
    path.write_text(UNLIMITED.read_text() + tier + OF_MODELS)
    return path


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server]:
    keys = tuple(SecretStr(key) for key in (KEY, *KEYS))
    given = settings(config=config(tmp_path_factory.mktemp("variants")), api_keys=keys, max_model_len=512)
    async with serving(given) as running:
        yield running


async def ask(server: Server, *, variant: str | None = None, key: str = KEY, **fields: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"} | ({HEADER: variant} if variant else {})
    body = chat_body(**{"model": "mix"} | fields)
    return await server.client.post("/v1/chat/completions", json=body, headers=headers)


async def test_each_key_meets_one_variant_and_all_keys_meet_both(server: Server) -> None:
    first = [(await ask(server, key=key)).headers[HEADER] for key in KEYS]
    again = [(await ask(server, key=key, content="something else")).headers[HEADER] for key in KEYS]
    assert first == again
    assert set(first) == {"base", "slow"}
    users = [(await ask(server, user=f"user-{number}")).headers[HEADER] for number in range(20)]
    assert set(users) == {"base", "slow"}
    assert users == [(await ask(server, user=f"user-{n}", key=KEYS[n])).headers[HEADER] for n in range(20)]


async def test_the_answer_is_told_under_the_name_that_was_asked_for(server: Server) -> None:
    plain = await ask(server, variant="slow")
    stream = events((await ask(server, variant="slow", stream=True)).text)
    base = await ask(server, variant="base")
    assert plain.json()["model"] == stream[0]["model"] == "mix"
    assert plain.json()["system_fingerprint"] == stream[0]["system_fingerprint"] != base.json()["system_fingerprint"]
    assert (await ask(server, model=MODEL)).json()["system_fingerprint"] not in (
        plain.json()["system_fingerprint"],
        base.json()["system_fingerprint"],
    )
    assert HEADER not in (await ask(server, model=MODEL)).headers


async def test_a_variant_can_be_chosen_by_name_even_one_that_nobody_meets(server: Server) -> None:
    assert (await ask(server, variant="secret")).headers[HEADER] == "secret"
    refused = await ask(server, variant="none")
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, HEADER)
    assert "base, slow, secret" in refused.json()["error"]["message"]
    refused = await ask(server, variant="base", model=MODEL)
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, HEADER)


async def test_who_may_not_choose_is_told_so(tmp_path: Path) -> None:
    async with serving(settings(config=config(tmp_path, tier=""))) as strict:
        refused = await ask(strict, variant="base")
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert (await ask(strict)).status_code == 200


async def test_what_a_variant_says_of_sampling_and_pacing_holds_where_a_request_says_nothing(server: Server) -> None:
    content = script(text="One two. Three four. Five six seven eight nine", gap=0.02)
    stream = events((await ask(server, variant="slow", content=content, stream=True)).text)
    pieces = [chunk["choices"][0]["delta"].get("content") for chunk in stream[:-1]]
    assert [piece for piece in pieces if piece] == ["One", " two. ", "Three four. ", "Five six seven eight nine"]
    # With a temperature of 0 an answer can be asked for again; without, it is not kept.
    assert (await ask(server, variant="slow", content="keep")).headers["x-mulgil-cache"] == "miss"
    assert (await ask(server, variant="slow", content="keep")).headers["x-mulgil-cache"] == "hit"
    assert (await ask(server, variant="base", content="keep")).headers["x-mulgil-cache"] == "bypass"
    assert (await ask(server, variant="base", content="keep", temperature=0, top_p=0.5)).headers[
        "x-mulgil-cache"
    ] == "miss", "another variant's answer"


async def test_streams_that_are_kept_and_turns_on_a_socket_have_variants_too(server: Server) -> None:
    body = chat_body(model="mix", stream=True, stream_options={"resumable": True})
    kept = await server.client.post("/v1/chat/completions", json=body, headers={HEADER: "slow"})
    created = await server.client.post("/v1/streams", json=chat_body(model="mix"), headers={HEADER: "slow"})
    read = await server.client.get(created.json()["url"])
    assert [one.headers[HEADER] for one in (kept, created, read)] == ["slow"] * 3
    headers = {"authorization": f"Bearer {KEY}", HEADER: "slow"}
    async with connected(server, headers=headers) as connection:
        assert (await turn(connection, content="hello", model="mix"))[-1]["variant"] == "slow"
        assert "variant" not in (await turn(connection, content="hello"))[-1]


async def test_aliases_are_listed_and_have_options_of_their_own(server: Server) -> None:
    listed = (await server.client.get("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == [MODEL, "mix", "short"]
    assert (await server.client.get("/v1/models/mix")).json()["id"] == "mix"
    said = {"role": "user", "content": "water " * 100}, {"role": "assistant", "content": "stone " * 100}
    messages = [*said * 5, {"role": "user", "content": "hello"}]
    assert (await ask(server, model=MODEL, messages=messages)).status_code == 400
    assert int((await ask(server, model="short", messages=messages)).headers["x-mulgil-truncated-messages"]) > 0
