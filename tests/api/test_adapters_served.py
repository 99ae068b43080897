"""What clients see of LoRA adapters: each is a model under its name, at once and no longer than it is there."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import MODEL, UNLIMITED, Server, chat_body, events, script, serving, settings, text_of
from loras import make_adapter
from pydantic import SecretStr

TOKEN = "the-admin-token-of-the-suite"
ADMIN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    """With the adapters `begun` and `pirate`; one of two variants of `mix` answers by `pirate`. Answers are kept."""
    begun, pirate = (make_adapter(tmp_path / name, seed=seed) for seed, name in enumerate(("begun", "pirate")))
    (tmp_path / "keys.toml").touch()
    (tmp_path / "mulgil.toml").write_text(
        UNLIMITED.read_text()
        + f"""
choose_variant = true
[adapters.begun]
path = "{begun}"
[adapters.pirate]
path = "{pirate}"
[models.mix]
cache = true
[models.mix.variants.base]
[models.mix.variants.pirate]
adapter = "pirate"
[models."{MODEL}"]
fallbacks = ["begun", "short"]
[models.short]
alias = true
truncation = "auto"
"""
    )
    chosen = settings(
        config=tmp_path / "mulgil.toml",
        keys_file=tmp_path / "keys.toml",
        admin_token=SecretStr(TOKEN),
        adapter_folders=(tmp_path,),
        max_model_len=512,
    )
    async with serving(chosen) as running:
        yield running


async def ask(server: Server, model: str, variant: str | None = None, **fields: Any) -> httpx2.Response:
    asked: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 40}
    body = chat_body(**asked | fields)
    headers = {"x-mulgil-variant": variant} if variant else {}
    answer = await server.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def content(answer: httpx2.Response) -> str:
    told: str = answer.json()["choices"][0]["message"]["content"]
    return told


async def load(server: Server, name: str, path: Path) -> httpx2.Response:
    body = {"name": name, "path": str(path)}
    return await server.client.post("/admin/adapters", json=body, headers=ADMIN)


async def listed(server: Server) -> list[str]:
    return [one["id"] for one in (await server.client.get("/v1/models")).json()["data"]]


async def test_each_adapter_answers_under_its_name_and_in_its_own_words(server: Server) -> None:
    assert await listed(server) == [MODEL, "mix", "short", "begun", "pirate"]
    base, begun, pirate = [await ask(server, name) for name in (MODEL, "begun", "pirate")]
    assert len({content(one) for one in (base, begun, pirate)}) == 3
    assert len({one.json()["system_fingerprint"] for one in (base, begun, pirate)}) == 3
    assert begun.json()["model"] == "begun"
    streamed = events((await ask(server, "pirate", stream=True)).text)
    assert text_of(streamed) == content(pirate)
    texts = [
        (await server.client.post("/v1/completions", json={"model": name, "prompt": "x"})).json()["choices"][0]["text"]
        for name in (MODEL, "pirate")
    ]
    assert texts[0] != texts[1]


async def test_a_variant_answers_by_its_adapter(server: Server) -> None:
    by_variant = [content(await ask(server, "mix", name)) for name in ("base", "pirate")]
    assert by_variant == [content(await ask(server, name)) for name in (MODEL, "pirate")]


async def test_one_that_is_loaded_later_is_a_model_at_once_and_no_longer_than_it_is_there(
    server: Server, tmp_path: Path
) -> None:
    assert (await load(server, "later", make_adapter(tmp_path / "one", seed=7))).status_code == 200
    assert "later" in await listed(server)
    assert (await server.client.get("/v1/models/later")).status_code == 200
    before = await ask(server, "later")
    assert (await load(server, "later", make_adapter(tmp_path / "two", seed=8))).status_code == 200
    after = await ask(server, "later")
    assert content(after) != content(before)
    assert after.json()["system_fingerprint"] != before.json()["system_fingerprint"]
    await server.client.delete("/admin/adapters/later", headers=ADMIN)
    assert "later" not in await listed(server)
    gone = await server.client.post("/v1/chat/completions", json=chat_body(model="later"))
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")


async def test_answers_of_an_adapter_that_was_replaced_are_found_no_more(server: Server, tmp_path: Path) -> None:
    first = await ask(server, "mix", "pirate")
    assert (await ask(server, "mix", "pirate")).headers["x-mulgil-cache"] == "hit"
    await load(server, "pirate", make_adapter(tmp_path / "other", seed=9))
    other = await ask(server, "mix", "pirate")
    assert other.headers["x-mulgil-cache"] == "miss"
    assert content(other) != content(first)
    assert (await ask(server, "mix", "pirate")).headers["x-mulgil-cache"] == "hit"


async def test_an_adapter_that_a_variant_needs_can_be_replaced_and_not_unloaded(server: Server) -> None:
    refused = await server.client.delete("/admin/adapters/pirate", headers=ADMIN)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "adapter_conflict")
    assert "variant" in refused.json()["error"]["message"]
    for name in ("mix", "begun", MODEL):
        taken = await load(server, name, Path("/anywhere"))
        assert taken.status_code in (409, 422)


async def test_what_runs_ends_by_the_adapter_that_it_began_with(server: Server, tmp_path: Path) -> None:
    flow = script("flow", tokens=40, gap=0.01)
    whole = content(await ask(server, "pirate", content=flow))
    body = chat_body(flow, model="pirate", temperature=0, max_tokens=40, stream=True)
    async with server.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        await load(server, "pirate", make_adapter(tmp_path / "other", seed=9))
        told = (await stream.aread()).decode()
    assert text_of(events(told)) == whole


async def test_a_fallback_that_was_unloaded_is_passed_over(server: Server) -> None:
    said = [{"role": "user", "content": "water " * 100}, {"role": "assistant", "content": "stone " * 100}] * 5
    messages = [*said, {"role": "user", "content": "hello"}]
    await server.client.delete("/admin/adapters/begun", headers=ADMIN)
    assert (await ask(server, MODEL, messages=messages)).headers["x-mulgil-fallback"] == "short"
