"""Servers elsewhere in `mulgil.toml`, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from mulgil.config_file import load_tiers, load_upstreams
from mulgil.upstreams import UpstreamOptions

SECRET = "sk-never-to-be-seen"


def upstreams(folder: Path, text: str) -> dict[str, UpstreamOptions]:
    (folder / "mulgil.toml").write_text(text)
    return dict(load_upstreams(folder / "mulgil.toml"))


def test_without_a_file_or_a_table_there_is_none(tmp_path: Path) -> None:
    assert load_upstreams(None) == {}
    assert upstreams(tmp_path, "[tiers.t]\n") == {}


def test_an_url_is_enough(tmp_path: Path) -> None:
    options = upstreams(tmp_path, '[upstreams.there]\nurl = "https://host/v1/"\n')["there"]
    assert options.url == "https://host/v1"
    assert (options.key, options.model, options.context) == (None, None, None)
    assert (options.connect_timeout, options.timeout) == (5.0, 60.0)


def test_everything_can_be_said(tmp_path: Path) -> None:
    text = (
        f'[upstreams.a]\nurl = "http://[::1]:8000"\nkey = "{SECRET}"\nmodel = "m"\nconnect_timeout = 0.5\ntimeout = 7\n'
    )
    options = upstreams(tmp_path, f"{text}context = 4096\n")["a"]
    assert options.key is not None
    assert options.key.get_secret_value() == SECRET
    assert (options.model, options.connect_timeout, options.timeout, options.context) == ("m", 0.5, 7.0, 4_096)
    assert SECRET not in f"{options!r}{options}{options.model_dump_json()}"


def test_a_key_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", SECRET)
    options = upstreams(tmp_path, '[upstreams.a]\nurl = "http://h"\nkey_env = "THEIR_KEY"\n')["a"]
    assert options.key is not None
    assert options.key.get_secret_value() == SECRET
    assert SECRET not in repr(options)


@pytest.mark.parametrize(("value", "what"), [(None, "NO_SUCH_KEY is not set"), ("a b", "printable ASCII")])
def test_a_variable_without_a_key_is_named_to_those_who_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, what: str
) -> None:
    if value is None:
        monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    else:
        monkeypatch.setenv("NO_SUCH_KEY", value)
    with pytest.raises(ValueError, match=what) as wrong:
        upstreams(tmp_path, '[upstreams.there]\nurl = "http://h"\nkey_env = "NO_SUCH_KEY"\n')
    assert f"{tmp_path / 'mulgil.toml'}: upstreams.there.key_env: " in str(wrong.value)
    assert load_tiers(tmp_path / "mulgil.toml").keys() == {"default"}  # who asks for tiers alone needs no key


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ('model = "m"', "a.url", "Field required"),
        ('url = "ftp://h/v1"', "a.url", "http://… or https://…"),
        ('url = "http://ada:pw@h/v1"', "a.url", "without a user"),
        ('url = "http://h/v1?x=1"', "a.url", "a query"),
        ('url = "http://h/v1#x"', "a.url", "fragment"),
        ('url = "http://"', "a.url", "http://…"),
        ('url = "http://h/ v1"', "a.url", "http://…"),
        ('url = "http://h"\nkeys = "x"', "a.keys", "not permitted"),
        (f'url = "http://h"\nkey = "{SECRET} {SECRET}"', "a.key", "printable ASCII"),
        (f'url = "http://h"\nkey = "{SECRET}"\nkey_env = "X"', "a", "choose one"),
        ('url = "http://h"\nkey_env = "a b"', "a.key_env", "pattern"),
        ('url = "http://h"\nmodel = ""', "a.model", "at least 1"),
        ('url = "http://h"\ntimeout = 0', "a.timeout", "greater than 0"),
        ('url = "http://h"\ntimeout = inf', "a.timeout", "finite"),
        ('url = "http://h"\nconnect_timeout = -1', "a.connect_timeout", "greater than 0"),
        ('url = "http://h"\ncontext = 1', "a.context", "greater than or equal to 2"),
        ('url = "http://h"\ncontext = "1"', "a.context", "integer"),
    ],
)
def test_what_is_wrong_is_named_and_no_key_is_shown(tmp_path: Path, fields: str, where: str, what: str) -> None:
    with pytest.raises(ValueError, match="mulgil") as wrong:
        upstreams(tmp_path, f"[upstreams.a]\n{fields}\n")
    assert str(wrong.value).startswith(f"{tmp_path / 'mulgil.toml'}: upstreams.{where}: ")
    assert what in str(wrong.value)
    assert SECRET not in str(wrong.value)


def test_a_name_is_a_plain_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"upstreams\.a b"):
        upstreams(tmp_path, '[upstreams."a b"]\nurl = "http://h"\n')
