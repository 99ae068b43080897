"""The admin API of LoRA adapters: who may enter, what can be done, and what is told about it."""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from harness import Server, serving, settings
from loras import make_adapter
from pydantic import SecretStr

TOKEN = "the-admin-token-of-the-suite"
ADMIN = {"authorization": f"Bearer {TOKEN}"}
ROUTES = (("GET", "/admin/adapters"), ("POST", "/admin/adapters"), ("DELETE", "/admin/adapters/{name}"))


@dataclass(frozen=True)
class Admin:
    """A gateway with the adapter `begun` in its configuration, and a folder from which others may be loaded."""

    server: Server
    folder: Path
    audit: Path

    async def ask(self, method: str, path: str = "", **options: Any) -> httpx2.Response:
        return await self.server.client.request(method, f"/admin/adapters{path}", headers=ADMIN, **options)

    async def load(self, name: str, path: Path | str) -> httpx2.Response:
        return await self.ask("POST", json={"name": name, "path": str(path)})

    def trace(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[Admin]:
    (tmp_path / "keys.toml").touch()
    (tmp_path / "mulgil.toml").write_text(f'[adapters.begun]\npath = "{make_adapter(tmp_path / "begun", seed=9)}"')
    chosen = settings(
        keys_file=tmp_path / "keys.toml",
        admin_token=SecretStr(TOKEN),
        audit_log=tmp_path / "audit",
        config=tmp_path / "mulgil.toml",
        adapter_folders=(tmp_path / "adapters",),
        max_adapters=2,
    )
    async with serving(chosen) as server:
        yield Admin(server, tmp_path / "adapters", tmp_path / "audit")


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


async def names(api: Admin) -> list[str]:
    answer = await api.ask("GET")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    return [adapter["name"] for adapter in answer.json()["data"]]


async def test_adapters_are_listed_loaded_replaced_and_unloaded_and_each_change_is_noted(api: Admin) -> None:
    (listed,) = (await api.ask("GET")).json()["data"]
    assert (listed["name"], listed["source"], listed["object"]) == ("begun", "config", "adapter")
    first = (await api.load("later", make_adapter(api.folder / "one"))).json()
    assert first == {
        "object": "adapter",
        "name": "later",
        "path": str(api.folder / "one"),
        "version": first["version"],
        "source": "admin",
    }
    assert await names(api) == ["begun", "later"]
    second = (await api.load("later", make_adapter(api.folder / "two", seed=2))).json()
    assert second["version"] != first["version"]
    known = api.server.mulgil.adapters.find("later")
    assert known is not None
    assert known.version == second["version"]
    gone = await api.ask("DELETE", "/later")
    assert gone.json() == {"object": "adapter", "name": "later", "deleted": True}
    assert (await api.ask("DELETE", "/begun")).status_code == 200
    assert await names(api) == []
    told = [(line["who"], line["what"], line["adapter"], line["version"]) for line in api.trace()]
    assert told == [
        ("admin", "adapter.load", "later", first["version"]),
        ("admin", "adapter.load", "later", second["version"]),
        ("admin", "adapter.unload", "later", second["version"]),
        ("admin", "adapter.unload", "begun", listed["version"]),
    ]
    assert api.trace()[2]["request_id"] == gone.headers["x-request-id"]


async def test_what_may_not_be_loaded_is_told_with_the_field_and_the_reason(api: Admin) -> None:
    made = make_adapter(api.folder / "one")
    refused: list[tuple[str, Path | str, str, str]] = [
        ("a/b", made, "name", "letters, digits"),
        ("demo", made, "name", "something else"),
        ("a", api.folder.parent / "begun", "path", "adapter_folders"),
        ("a", api.folder / "../begun", "path", "adapter_folders"),
        ("a", "one", "path", "absolute"),
        ("a", api.folder / "none", "path", "no folder"),
        ("a", make_adapter(api.folder / "high", rank=17), "path", "max_lora_rank"),
    ]
    for name, path, param, told in refused:
        error = error_of(await api.load(name, path), 422)
        assert (error["param"], error["code"]) == (param, "invalid_value")
        assert told in error["message"]
    for body, param in [({"name": "a"}, "path"), ({"path": "/a"}, "name"), ({"name": 1, "path": "/a"}, "name")]:
        assert error_of(await api.ask("POST", json=body), 422)["param"] == param
    unknown = {"name": "a", "path": "/a", "rank": 8}
    assert error_of(await api.ask("POST", json=unknown), 400)["code"] == "unknown_parameter"
    assert await names(api) == ["begun"]
    assert api.trace() == []


async def test_there_are_no_more_than_may_be_and_none_is_unloaded_twice(api: Admin) -> None:
    made = make_adapter(api.folder / "one")
    assert (await api.load("a", made)).status_code == 200
    assert error_of(await api.load("b", made), 409)["code"] == "adapter_conflict"
    assert (await api.ask("DELETE", "/a")).status_code == 200
    error = error_of(await api.ask("DELETE", "/a"), 404)
    assert (error["code"], error["param"]) == ("adapter_not_found", "name")
    assert error_of(await api.ask("DELETE", "/" + "x" * 3_000), 404)["message"].count("x") == 64


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_nobody_else_enters(api: Admin, method: str, path: str) -> None:
    client = api.server.client
    body = {"name": "a", "path": str(make_adapter(api.folder / "one"))}
    theirs = await client.request(method, path.replace("{name}", "begun"), json=body)
    assert error_of(theirs, 403)["code"] == "admin_only"
    nobody = await client.request(method, path.replace("{name}", "begun"), json=body, headers={"authorization": ""})
    assert nobody.status_code == 401
    assert await names(api) == ["begun"]


async def test_while_there_is_no_engine_nothing_is_loaded_and_the_list_is_told(api: Admin) -> None:
    made = make_adapter(api.folder / "one")
    await api.server.engine.stop()
    error = error_of(await api.load("a", made), 503)
    assert error["code"] == "engine_unavailable"
    assert await names(api) == ["begun"]


async def test_without_folders_none_can_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").touch()
    chosen = settings(keys_file=tmp_path / "keys.toml", admin_token=SecretStr(TOKEN))
    async with serving(chosen) as server:
        body = {"name": "a", "path": str(make_adapter(tmp_path / "one"))}
        answer = await server.client.post("/admin/adapters", json=body, headers=ADMIN)
        assert "adapter_folders" in error_of(answer, 422)["message"]


async def test_without_an_admin_token_the_routes_do_not_exist(server: Server) -> None:
    assert error_of(await server.client.get("/admin/adapters"), 404)["code"] == "unknown_url"


def test_every_route_is_documented_and_every_documented_one_exists(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/variants.md").read_text()
    assert set(re.findall(r"`(GET|POST|PATCH|DELETE) (/admin[^`]*)`", page)) == set(ROUTES)


async def test_they_are_in_the_description_of_the_application(api: Admin) -> None:
    described = api.server.mulgil.app.openapi()["paths"]
    assert {(method.upper(), path) for path in described for method in described[path] if "adapters" in path} == set(
        ROUTES
    )
