"""Which settings make a source of keys, and what the command line and the documents say of them."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from harness import Server, settings
from pydantic import SecretStr
from typer.testing import CliRunner

from mulgil.adapters import build_key_stores, build_keys
from mulgil.auth.file import KeyFile
from mulgil.cli import app as command_line
from mulgil.keys_command import keys_app
from mulgil.stores.redis_keys import RedisKeys

REDIS = SecretStr("redis://127.0.0.1:1")
TOKEN = SecretStr("0123456789abcdef")
KEYS_PAGE = (Path(__file__).parents[2] / "docs/keys.md").read_text()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "no API key"),
        ({"keys_file": Path("k")}, None),
        ({"redis_url": REDIS}, None),
        ({"insecure": True}, None),
        ({"insecure": True, "redis_url": REDIS}, None),
        ({"insecure": True, "keys_file": Path("k")}, "'insecure' would let everybody in although 'keys_file'"),
        ({"keys_file": Path("k"), "admin_token": TOKEN}, None),
        ({"api_keys": (SecretStr("a-static-key"),), "admin_token": TOKEN}, "'keys_file' or 'redis_url'"),
        ({"keys_file": Path("k"), "admin_token": SecretStr("0123456789abcde")}, "16 to 512"),
        ({"keys_file": Path("k"), "admin_token": SecretStr("0123456789abcdé0")}, "16 to 512"),
        ({"keys_file": Path("k"), "admin_token": SecretStr("0123456789 abcdef")}, "16 to 512"),
    ],
)
def test_there_must_be_a_source_of_keys_and_settings_must_agree(given: dict[str, Any], problem: str | None) -> None:
    chosen = settings(**({"api_keys": ()} | given))
    if problem is None:
        chosen.check()
        return
    with pytest.raises(ValueError, match=problem):
        chosen.check()


def test_new_keys_go_to_the_file_if_there_is_one_else_to_redis() -> None:
    both = build_key_stores(settings(keys_file=Path("k"), redis_url=REDIS))
    assert [type(store) for store in both] == [KeyFile, RedisKeys]
    assert isinstance(build_keys(settings(redis_url=REDIS)).store, RedisKeys)
    assert build_keys(settings()).store is None


def test_check_config_prints_the_tiers_or_says_what_is_wrong_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "mulgil.toml"
    arguments = ["check-config", "--engine=simulated", "--insecure", f"--config={config}"]
    config.write_text('[tiers.gold]\nrequests_per_minute = 600\nconcurrent_requests = "unlimited"\n')
    tiers = orjson.loads(CliRunner().invoke(command_line, arguments).stdout)["tiers"]
    assert tiers["default"]["requests_per_minute"] == 60
    assert (tiers["gold"]["requests_per_minute"], tiers["gold"]["concurrent_requests"]) == (600, "unlimited")
    assert tiers["gold"]["tenant"]["requests_per_minute"] == 600
    config.write_text("[tiers.gold]\nrequests_per_minute = 0\n")
    done = CliRunner().invoke(command_line, arguments)
    assert done.exit_code == 2
    assert f"{config}: tiers.gold.requests_per_minute" in done.stderr


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_without_an_admin_token_there_are_no_admin_routes(shared: Server, method: str) -> None:
    for path in ("/admin", "/admin/keys", "/admin/keys/x/reset"):
        answer = await shared.client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
        answer = await shared.client.request(method, path, headers={"authorization": ""})
        assert answer.status_code == 401


def test_every_command_and_option_is_documented() -> None:
    names = {command.name or command.callback.__name__ for command in keys_app.registered_commands if command.callback}
    assert set(re.findall(r"`mulgil keys ([a-z]+)", KEYS_PAGE)) == names
