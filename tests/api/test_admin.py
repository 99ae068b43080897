"""The admin API: who may enter, what can be done, what is told about it and what never is."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from fastapi import FastAPI
from harness import Server, chat_body, serving, settings
from keyrecords import made, now
from pydantic import SecretStr

from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account, BudgetStore, Report, Reservation, Settlement, StoreError
from mulgil.api import admin, errors
from mulgil.api.admin_access import ADMIN_PATHS, AdminMiddleware
from mulgil.api.body import BodyRules
from mulgil.api.middleware import AuthenticationMiddleware, RequestContextMiddleware
from mulgil.audit import Audit
from mulgil.auth.file import FileKeys, KeyFile
from mulgil.auth.keys import digest
from mulgil.auth.registrar import Registrar
from mulgil.stores.memory import MemoryStore
from mulgil.tiers import Tier

TOKEN = "the-admin-token-of-the-suite"
TIERS = {"default": Tier(), "gold": Tier(requests_per_minute=600)}


class Away(MemoryStore):
    """A budget store that does not answer."""

    async def balances(self, account: Account) -> Any:
        raise StoreError("no answer")

    async def reset(self, account: Account, *, tenant_too: bool = False) -> None:
        raise StoreError("no answer")


def application(file: KeyFile, audit: Audit, budgets: BudgetStore, **settings: Any) -> FastAPI:
    """What the composition root makes of these parts."""
    app = FastAPI(redirect_slashes=False, **settings)
    app.include_router(
        admin.routes(Registrar(file, TIERS, audit), budgets, audit, BodyRules(max_bytes=65_536, max_depth=16))
    )
    errors.install(app)
    keys = FileKeys(file)
    app.add_middleware(AuthenticationMiddleware, keys=keys, open_paths=ADMIN_PATHS)
    app.add_middleware(AdminMiddleware, token=TOKEN, keys=keys)
    app.add_middleware(RequestContextMiddleware)
    return app


@dataclass(frozen=True)
class Admin:
    """The routes, a client with the token, and what is behind them."""

    client: httpx2.AsyncClient
    app: FastAPI
    file: KeyFile
    budgets: MemoryStore
    audit: Path
    user_key: str

    async def make(self, **fields: Any) -> dict[str, Any]:
        answer = await self.client.post("/admin/keys", json=fields)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def trace(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.audit.read_text().splitlines()]


def connected(app: FastAPI, token: str | None = TOKEN, **options: Any) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app, **options), base_url="http://test", headers=headers)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncGenerator[Admin]:
    file, audit, budgets = KeyFile(tmp_path / "keys.toml"), tmp_path / "audit.jsonl", MemoryStore()
    key, record = made(id="user", tenant="acme", created=now(days=-1))
    await file.add(record)
    app = application(file, Audit(audit), budgets)
    async with connected(app) as client:
        yield Admin(client, app, file, budgets, audit, key)


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


ROUTES = [
    ("GET", "/admin/keys"), ("POST", "/admin/keys"), ("GET", "/admin/keys/user"), ("PATCH", "/admin/keys/user"),
    ("DELETE", "/admin/keys/user"), ("POST", "/admin/keys/user/disable"), ("POST", "/admin/keys/user/enable"),
    ("POST", "/admin/keys/user/rotate"), ("GET", "/admin/keys/user/balance"), ("POST", "/admin/keys/user/reset"),
    ("GET", "/admin/tenants/acme/balance"),
]  # fmt: skip


def test_the_table_of_routes_is_whole(api: Admin) -> None:
    described = api.app.openapi()["paths"]
    found = {(method.upper(), path) for path, methods in described.items() for method in methods}
    assert found == {(method, path.replace("user", "{key_id}").replace("acme", "{tenant}")) for method, path in ROUTES}


@pytest.mark.parametrize(
    ("method", "path"), [*ROUTES, ("GET", "/admin"), ("GET", "/admin/"), ("PUT", "/admin/nowhere")]
)
async def test_only_the_admin_token_opens(api: Admin, method: str, path: str) -> None:
    before = api.file.path.read_bytes()
    for token, status, code in (
        (None, 401, None),
        ("", 401, None),
        ("wrong", 401, "invalid_api_key"),
        (TOKEN[:-1], 401, "invalid_api_key"),
        (TOKEN + "x", 401, "invalid_api_key"),
        (digest(TOKEN.encode()), 401, "invalid_api_key"),
        ("z" * 10_000, 401, "invalid_api_key"),
        ("caf\xe9", 401, "invalid_api_key"),
        (api.user_key, 403, "admin_only"),
    ):
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode("latin-1"))]
        async with connected(api.app, None) as client:
            answer = await client.request(method, path, headers=headers)
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (status, code)
        assert error["type"] == ("permission_error" if status == 403 else "invalid_request_error")
        if status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
    assert api.file.path.read_bytes() == before
    assert api.audit.read_text() == ""


async def test_two_authorization_headers_are_none(api: Admin) -> None:
    headers = [("authorization", f"Bearer {TOKEN}")] * 2
    async with connected(api.app, None) as client:
        assert (await client.get("/admin/keys", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/administrator", "/adminx/keys", "/v1/admin/keys", "//admin/keys"]
)
async def test_the_admin_token_opens_nothing_else(api: Admin, path: str) -> None:
    answer = await api.client.get(path if not path.startswith("//") else f"http://test{path}")
    assert (answer.status_code, error_of(answer)["code"]) == (401, "invalid_api_key")


async def test_not_even_a_root_path_lets_a_users_key_in(api: Admin) -> None:
    async with connected(api.app, api.user_key, root_path="/prefix") as client:
        for path in ("/prefix/admin/keys", "/admin/keys"):
            answer = await client.get(path)
            assert (answer.status_code, error_of(answer)["code"]) == (403, "admin_only")


async def test_what_is_not_there_is_a_404_and_a_wrong_method_a_405(api: Admin) -> None:
    for method, path, status, code in (
        ("GET", "/admin", 404, "unknown_url"),
        ("GET", "/admin/nowhere", 404, "unknown_url"),
        ("GET", "/admin/keys/", 404, "unknown_url"),
        ("PUT", "/admin/keys", 405, "method_not_allowed"),
        ("GET", "/admin/keys/nobody", 404, "key_not_found"),
        ("DELETE", "/admin/keys/nobody", 404, "key_not_found"),
        ("POST", "/admin/keys/nobody/disable", 404, "key_not_found"),
        ("POST", "/admin/keys/nobody/reset", 404, "key_not_found"),
        ("GET", "/admin/keys/nobody/balance", 404, "key_not_found"),
    ):
        answer = await api.client.request(method, path)
        assert (answer.status_code, error_of(answer)["code"]) == (status, code), path
    for body in ("rotate", ""):
        answer = await api.client.request(
            "POST" if body else "PATCH", f"/admin/keys/nobody/{body}".rstrip("/"), json={}
        )
        assert (answer.status_code, error_of(answer)["code"]) == (404, "key_not_found")


async def test_a_key_is_made_shown_once_and_works(api: Admin) -> None:
    issued = await api.make(tenant="acme", tier="gold", models=["a", "b"], expires="2099-01-31T12:00:00+09:00")
    key = issued.pop("key")
    assert issued["expires"] == "2099-01-31T12:00:00+09:00"
    shown = (await api.client.get(f"/admin/keys/{issued['id']}")).json()
    assert shown == issued | {"expires": "2099-01-31T03:00:00Z"}
    assert (shown["tenant"], shown["tier"], shown["models"], shown["status"]) == ("acme", "gold", ["a", "b"], "active")
    listed = (await api.client.get("/admin/keys")).json()
    assert (listed["object"], listed["data"][1]) == ("list", shown)
    caller = await FileKeys(api.file).find(key.encode())
    assert caller is not None
    assert (caller.key_id, caller.tier, caller.models) == (issued["id"], "gold", ("a", "b"))


async def test_null_and_nothing_are_the_default(api: Admin) -> None:
    for fields in ({}, {"tenant": None, "tier": None, "models": None, "expires": None}):
        issued = await api.make(**fields)
        assert (issued["tenant"], issued["tier"], issued["models"], issued["expires"]) == (
            "default",
            "default",
            None,
            None,
        )


async def test_no_answer_may_be_kept_by_a_cache(api: Admin) -> None:
    for method, path in (("GET", "/admin/keys"), ("GET", "/admin/keys/user"), ("GET", "/admin/tenants/acme/balance")):
        assert (await api.client.request(method, path)).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("fields", "param", "status", "code"),
    [
        ({"tier": "silver"}, "tier", 422, "invalid_value"),
        ({"tier": 1}, "tier", 422, "invalid_type"),
        ({"tenant": "a b"}, "tenant", 422, "invalid_value"),
        ({"tenant": ""}, "tenant", 422, "invalid_value"),
        ({"models": []}, "models", 422, "array_below_min_length"),
        ({"models": "m"}, "models", 422, "invalid_type"),
        ({"models": [1]}, "models[0]", 422, "invalid_type"),
        ({"models": ["a\n"]}, "models", 422, "invalid_value"),
        ({"expires": "soon"}, "expires", 422, "invalid_value"),
        ({"expires": 4_000_000_000}, "expires", 422, "invalid_value"),
        ({"expires": "2099-01-01"}, "expires", 422, "invalid_value"),
        ({"expires": "2001-01-01T00:00:00Z"}, "expires", 422, "invalid_value"),
        ({"expire": "2099-01-01T00:00:00Z"}, "expire", 400, "unknown_parameter"),
        ({"disabled": "yes"}, "disabled", 422, "invalid_type"),
    ],
)
async def test_a_wrong_field_is_named_and_changes_nothing(
    api: Admin, fields: dict[str, Any], param: str, status: int, code: str
) -> None:
    before = api.file.path.read_bytes()
    calls = [("PATCH", "/admin/keys/user")] if "disabled" in fields else [("POST", "/admin/keys")]
    if "tenant" not in fields:
        calls.append(("PATCH", "/admin/keys/user"))
    for method, path in calls:
        answer = await api.client.request(method, path, json=fields)
        error = error_of(answer)
        assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert api.file.path.read_bytes() == before
    assert api.audit.read_text() == ""


@pytest.mark.parametrize(("body", "code"), [(b"", "invalid_json"), (b"[]", "invalid_json"), (b"{", "invalid_json")])
async def test_a_body_that_is_no_object_is_a_400(api: Admin, body: bytes, code: str) -> None:
    headers = {"content-type": "application/json"}
    for method, path in (("POST", "/admin/keys"), ("PATCH", "/admin/keys/user"), ("POST", "/admin/keys/user/rotate")):
        answer = await api.client.request(method, path, content=body, headers=headers)
        assert (answer.status_code, error_of(answer)["code"]) == (400, code)


async def test_a_patch_changes_what_it_names_and_null_takes_away(api: Admin) -> None:
    path = "/admin/keys/user"
    before = (await api.client.get(path)).json()
    fields = {"tier": "gold", "models": ["m"], "expires": "2099-01-01T00:00:00Z", "disabled": True}
    changed = (await api.client.patch(path, json=fields)).json()
    assert changed == before | fields | {"status": "disabled"}
    nothing = (await api.client.patch(path, json={"tier": None, "disabled": None})).json()
    assert nothing == changed
    back = await api.client.patch(path, json={"tier": "default", "models": None, "expires": None, "disabled": False})
    assert back.json() == before


async def test_a_disabled_key_is_refused_until_it_is_enabled(api: Admin) -> None:
    for step, works in (("disable", False), ("enable", True)):
        answer = await api.client.post(f"/admin/keys/user/{step}")
        assert answer.json()["status"] == ("active" if works else "disabled")
        assert (await FileKeys(api.file).find(api.user_key.encode()) is not None) == works


@pytest.mark.parametrize(
    ("fields", "old_works"), [({}, True), ({"grace_seconds": 60}, True), ({"grace_seconds": 0}, False)]
)
async def test_a_rotated_key_works_beside_the_new_one_within_its_grace(
    api: Admin, fields: dict[str, int], old_works: bool
) -> None:
    issued = (await api.client.post("/admin/keys/user/rotate", json=fields)).json()
    assert issued["id"] == "user"
    assert (issued["replaced_valid_until"] is not None) == old_works
    keys = FileKeys(api.file)
    new, old = await keys.find(issued["key"].encode()), await keys.find(api.user_key.encode())
    assert new is not None
    assert old == (new if old_works else None)


async def test_a_deleted_key_is_gone(api: Admin) -> None:
    assert (await api.client.delete("/admin/keys/user")).json() == {"object": "key", "id": "user", "deleted": True}
    assert (await api.client.get("/admin/keys/user")).status_code == 404
    assert await FileKeys(api.file).find(api.user_key.encode()) is None


async def spend(api: Admin, *, output: int) -> None:
    """A request of the user's, done, and another under way."""
    account = Account("acme", "user")
    for lease in ("done", "running"):
        await api.budgets.reserve(Reservation(lease, account, Charge(100, 50), Limits(), Limits()))
    await api.budgets.settle(Settlement(Report("done", account, output)))


async def test_balances_are_live_and_a_reset_empties_the_keys_windows(api: Admin) -> None:
    await spend(api, output=7)
    balance = (await api.client.get("/admin/keys/user/balance")).json()
    used = {"requests": 2, "input_tokens": 200, "output_tokens": 7, "held_tokens": 50, "concurrency": 1}
    assert (balance["key_id"], balance["tenant"]) == ("user", "acme")
    for scope in ("key", "of_tenant"):
        assert {name: balance[scope][name] for name in used} == used
        assert 0 < balance[scope]["requests_reset"] <= 61
    assert balance["key_limits"]["requests_per_minute"] == 60
    assert (await api.client.post("/admin/keys/user/reset")).json()["id"] == "user"
    after = (await api.client.get("/admin/keys/user/balance")).json()
    assert (after["key"]["requests"], after["key"]["concurrency"]) == (0, 1)
    tenant = (await api.client.get("/admin/tenants/acme/balance")).json()
    assert (tenant["tenant"], tenant["of_tenant"]["requests"]) == ("acme", 2)
    assert [line["what"] for line in api.trace()] == ["balance.reset"]


async def test_a_tenant_that_nobody_knows_has_used_nothing(api: Admin) -> None:
    answer = await api.client.get("/admin/tenants/nobody/balance")
    assert set(answer.json()["of_tenant"].values()) == {0}


async def test_without_the_budget_store_it_is_a_503_and_keys_can_be_managed(api: Admin) -> None:
    app = application(api.file, Audit(), Away())
    async with connected(app) as client:
        for method, path in (
            ("GET", "/admin/keys/user/balance"),
            ("GET", "/admin/tenants/acme/balance"),
            ("POST", "/admin/keys/user/reset"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, error_of(answer)["code"]) == (503, "limiter_unavailable")
        assert (await client.post("/admin/keys/user/disable")).status_code == 200


async def test_keys_that_cannot_be_read_are_a_503(api: Admin) -> None:
    api.file.path.write_text("broken")
    answer = await api.client.get("/admin/keys")
    assert (answer.status_code, error_of(answer)["code"]) == (503, "keys_unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_every_change_is_in_the_audit_log_and_no_secret_is_anywhere(
    api: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    issued = await api.make(tenant="acme", models=["m"])
    path = f"/admin/keys/{issued['id']}"
    rotated = await api.client.post(f"{path}/rotate", json={})
    for method, where, body in (
        ("PATCH", path, {"tier": "gold", "expires": "2099-01-01T00:00:00Z"}),
        ("POST", f"{path}/disable", None),
        ("POST", f"{path}/reset", None),
        ("GET", path, None),
        ("DELETE", path, None),
    ):
        assert (await api.client.request(method, where, json=body)).status_code == 200
    trace = api.trace()
    assert [line["what"] for line in trace] == [
        "key.create", "key.rotate", "key.change", "key.change", "balance.reset", "key.delete",
    ]  # fmt: skip
    assert {(line["who"], line["key_id"], line["tenant"]) for line in trace} == {("admin", issued["id"], "acme")}
    assert trace[1]["request_id"] == rotated.headers["x-request-id"]
    assert trace[2]["values"] == {"tier": "gold", "expires": "2099-01-01T00:00:00Z"}
    logged = "\n".join(caplog.handler.format(record) for record in caplog.records)
    assert trace[1]["request_id"] in logged
    for secret in (issued["key"], rotated.json()["key"], TOKEN, api.user_key):
        assert secret not in api.file.path.read_text()
        for where in (logged, api.audit.read_text()):
            assert secret not in where
            assert digest(secret.encode())[7:] not in where


def test_every_route_is_documented_and_every_documented_one_exists() -> None:
    page = (Path(__file__).parents[2] / "docs/keys.md").read_text()
    written = set(re.findall(r"`(GET|POST|PATCH|DELETE) (/admin[^`]*)`", page))
    assert written == {
        (method, path.replace("user", "{key_id}").replace("acme", "{tenant}")) for method, path in ROUTES
    }


async def test_in_the_whole_application_a_key_made_by_the_admin_works_and_its_balance_is_told(tmp_path: Path) -> None:
    chosen = settings(
        keys_file=tmp_path / "keys.toml",
        admin_token=SecretStr(TOKEN),
        audit_log=tmp_path / "audit",
        config=tmp_path / "mulgil.toml",
    )
    (tmp_path / "keys.toml").touch()
    (tmp_path / "mulgil.toml").write_text(
        '[tiers.small]\nrequests_per_minute = 2\n[tiers.small.tenant]\nrequests_per_minute = "unlimited"\n'
    )
    async with serving(chosen) as server:
        administrator = {"authorization": f"Bearer {TOKEN}"}
        made = await server.client.post("/admin/keys", json={"tenant": "acme", "tier": "small"}, headers=administrator)
        assert made.status_code == 200, made.text
        theirs = {"authorization": f"Bearer {made.json()['key']}"}

        async def ask() -> int:
            reply = await server.client.post("/v1/chat/completions", json=chat_body(max_tokens=2), headers=theirs)
            return reply.status_code

        async with asyncio.timeout(5):
            while (first := await ask()) == 401:
                await asyncio.sleep(0.1)
        assert [first, await ask(), await ask()] == [200, 200, 429]
        path = f"/admin/keys/{made.json()['id']}"
        told = (await server.client.get(f"{path}/balance", headers=administrator)).json()
        assert told["key"]["requests"] == told["of_tenant"]["requests"] == 2
        assert (await server.client.post(f"{path}/reset", headers=administrator)).status_code == 200
        assert (await server.client.get("/admin/keys")).status_code == 403
        assert (await server.client.get("/admin/keys", headers={"authorization": ""})).status_code == 401
        assert await ask() == 200
    assert "acme" in (tmp_path / "audit").read_text()


async def test_without_an_admin_token_the_routes_do_not_exist(server: Server) -> None:
    assert (await server.client.get("/admin/keys")).status_code == 404
    assert (await server.client.get("/admin/keys")).json()["error"]["code"] == "unknown_url"
    assert not [path for path in server.mulgil.app.openapi()["paths"] if path.startswith("/admin")]
