"""The example of `mulgil.toml`: all that can be said is in it, and it is accepted."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mulgil.config_file import AdapterOptions, ModelOptions, load_adapters, load_models, load_tiers, load_upstreams
from mulgil.prices import Price
from mulgil.tiers import Tier
from mulgil.upstreams import UpstreamOptions
from mulgil.variants import Sampling, Variant

EXAMPLE = Path(__file__).parents[1] / "mulgil.example.toml"
TABLES = tomllib.loads(EXAMPLE.read_text())
INSTEAD = {"key"}  # of `key_env`; the example says so in a comment


def said(*tables: dict[str, Any]) -> set[str]:
    return {name for table in tables for name in table}


VARIANTS = TABLES["models"]["assistant"]["variants"]


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (Tier, said(*TABLES["tiers"].values())),
        (ModelOptions, said(*TABLES["models"].values())),
        (Price, said(TABLES["models"]["qwen3-8b"]["price"])),
        (Variant, said(*VARIANTS.values())),
        (Sampling, said(VARIANTS["friendly"]["sampling"])),
        (AdapterOptions, said(*TABLES["adapters"].values())),
        (UpstreamOptions, said(*TABLES["upstreams"].values()) | INSTEAD),
    ],
)
def test_every_field_of_every_table_is_in_the_example(model: type[BaseModel], fields: set[str]) -> None:
    assert model.model_fields.keys() == fields


def test_the_example_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWHERE_KEY", "a-key-of-another-server")
    assert load_tiers(EXAMPLE).keys() == {"default", "gold"}
    assert load_models(EXAMPLE).keys() == {"qwen3-8b", "short", "assistant"}
    assert load_adapters(EXAMPLE).keys() == {"friendly-v2"}
    key = load_upstreams(EXAMPLE)["elsewhere"].key
    assert key is not None
    assert key.get_secret_value() == "a-key-of-another-server"
    assert load_tiers(EXAMPLE)["default"] == Tier(), "the first tier of the example says what holds without it"
