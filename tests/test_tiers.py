"""Tiers: what `mulgil.toml` may say, and what is said of one that is wrong."""

from decimal import Decimal
from pathlib import Path

import pytest

from mulgil.config_file import load_adapters, load_models, load_prices, load_tiers
from mulgil.errors import PermissionDeniedError
from mulgil.prices import Price
from mulgil.tiers import Tier, check_model_allowed, shown


def tiers(folder: Path, text: str) -> dict[str, Tier]:
    (folder / "mulgil.toml").write_text(text)
    return dict(load_tiers(folder / "mulgil.toml"))


def test_without_a_file_there_is_one_tier_with_the_built_in_limits() -> None:
    found = load_tiers(None)
    assert found.keys() == {"default"}
    tier = found["default"]
    assert (tier.requests_per_minute, tier.input_tokens_per_minute) == (60, 100_000)
    assert (tier.output_tokens_per_minute, tier.concurrent_requests) == (50_000, 10)
    assert (tier.models, tier.priority, tier.weight, tier.max_tokens) == ((), "normal", 1, None)


def test_the_file_adds_tiers_and_may_redefine_the_default(tmp_path: Path) -> None:
    added = tiers(tmp_path, '[tiers.gold]\nrequests_per_minute = 600\npriority = "interactive"\nmax_tokens = 512\n')
    assert added["default"] == Tier()
    assert (added["gold"].requests_per_minute, added["gold"].concurrent_requests) == (600, 10)
    assert (added["gold"].priority, added["gold"].max_tokens) == ("interactive", 512)
    assert tiers(tmp_path, "[tiers.default]\nconcurrent_requests = 2\n")["default"].concurrent_requests == 2


def test_unlimited_is_no_limit(tmp_path: Path) -> None:
    tier = tiers(tmp_path, '[tiers.t]\nrequests_per_minute = "unlimited"\n')["t"]
    assert tier.requests_per_minute is None
    assert shown(tier)["requests_per_minute"] == "unlimited"


def test_a_tenants_limits_are_a_keys_own_unless_they_are_given(tmp_path: Path) -> None:
    own = "[tiers.t]\nrequests_per_minute = 7\n"
    together = '[tiers.t.tenant]\nconcurrent_requests = 99\ninput_tokens_per_minute = "unlimited"\n'
    tenant = tiers(tmp_path, own + together)["t"].tenant
    assert tenant is not None
    assert (tenant.requests_per_minute, tenant.concurrent_requests, tenant.input_tokens_per_minute) == (7, 99, None)
    assert shown(Tier(requests_per_minute=7))["tenant"]["requests_per_minute"] == 7


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("[tiers.t]\nrequests_per_minute = 0\n", "tiers.t.requests_per_minute", "greater than or equal to 1"),
        ("[tiers.t]\nrequests_per_minute = -1\n", "tiers.t.requests_per_minute", "greater than or equal to 1"),
        ("[tiers.t]\nrequests_per_minute = 1.5\n", "tiers.t.requests_per_minute", "integer"),
        ('[tiers.t]\nrequests_per_minute = "60"\n', "tiers.t.requests_per_minute", "integer"),
        ("[tiers.t]\nconcurrent_requests = true\n", "tiers.t.concurrent_requests", "integer"),
        ("[tiers.t]\nrequest_per_minute = 1\n", "tiers.t.request_per_minute", "not permitted"),
        ("[tiers.t.tenant]\nrequests_per_minute = 0\n", "tiers.t.tenant.requests_per_minute", "greater than"),
        ("[tiers.t.tenant]\nmax_tokens = 1\n", "tiers.t.tenant.max_tokens", "not permitted"),
        ("[tiers.t]\ntenant = 1\n", "tiers.t.tenant", "TierLimits"),
        ('[tiers.t]\npriority = "urgent"\n', "tiers.t.priority", "'interactive', 'normal' or 'batch'"),
        ("[tiers.t]\nweight = 0\n", "tiers.t.weight", "greater than or equal to 1"),
        ("[tiers.t]\nweight = 1001\n", "tiers.t.weight", "less than or equal to 1000"),
        ("[tiers.t]\nweight = 1.5\n", "tiers.t.weight", "integer"),
        ("[tiers.t]\nmax_tokens = 0\n", "tiers.t.max_tokens", "greater than or equal to 1"),
        ("[tiers.t]\nmodels = []\n", "tiers.t.models", "at least 1"),
        ('[tiers.t]\nmodels = "m"\n', "tiers.t.models", "tuple"),
        ('[models.m]\ntruncation = "always"\n', "models.m.truncation", "'auto' or 'disabled'"),
        ("[models.m]\ntruncate = true\n", "models.m.truncate", "not permitted"),
        ('[tiers."a b"]\n', "tiers.a b", "pattern"),
        ("[tiers.t]\ntokens_per_day = 0\n", "tiers.t.tokens_per_day", "greater than or equal to 1"),
        ("[tiers.t]\ncost_per_day = 0\n", "tiers.t.cost_per_day", "greater than 0"),
        ("[tiers.t]\ncost_per_day = nan\n", "tiers.t.cost_per_day", "finite number"),
        ("[tiers.t]\ncost_per_month = 0.0000001\n", "tiers.t.cost_per_month", "6 decimal places"),
        ("[models.m.price]\ninput = -1\n", "models.m.price.input", "greater than or equal to 0"),
        ('[models.m.price]\noutput = "much"\n', "models.m.price.output", "decimal"),
        ("[models.m.price]\nreasoning = 1\n", "models.m.price.reasoning", "not permitted"),
        ("[models.m]\nprices = 1\n", "models.m.prices", "not permitted"),
        ("[tier.t]\n", "tier", "not permitted"),
        ("[tiers.t\n", "line 1", "Expected"),
    ],
)
def test_what_is_wrong_is_named_with_file_table_and_field(tmp_path: Path, text: str, where: str, what: str) -> None:
    with pytest.raises(ValueError, match=what) as refused:
        tiers(tmp_path, text)
    assert str(tmp_path / "mulgil.toml") in str(refused.value)
    assert where in str(refused.value)
    assert "\n" not in str(refused.value)


def test_quotas_are_none_unless_given_and_a_tenants_are_a_keys_own_unless_given(tmp_path: Path) -> None:
    assert not Tier().has_quota
    own = "[tiers.t]\ntokens_per_day = 7\ncost_per_month = 0.1\n"
    tier = tiers(tmp_path, own + '[tiers.t.tenant]\ntokens_per_day = "unlimited"\n')["t"]
    assert tier.has_quota
    assert (tier.tokens_per_day, tier.tokens_per_month, tier.cost_per_month) == (7, None, Decimal("0.1"))
    assert tier.tenant is not None
    assert (tier.tenant.tokens_per_day, tier.tenant.cost_per_month) == (None, Decimal("0.1"))
    assert (shown(tier)["cost_per_month"], shown(tier)["tokens_per_month"]) == ("0.1", "unlimited")


def test_prices_are_what_is_written_to_the_last_digit(tmp_path: Path) -> None:
    (tmp_path / "mulgil.toml").write_text(
        '[models."a.b".price]\ninput = 0.1\n[models.c.price]\ninput = 2\ncached_input = "0.3"\n[models.d]\n'
    )
    prices = load_prices(tmp_path / "mulgil.toml")
    assert prices["a.b"] == Price(input=Decimal("0.1"), cached_input=None, output=Decimal(0))
    assert prices["c"] == Price(input=Decimal(2), cached_input=Decimal("0.3"))
    assert prices["d"] == Price()
    assert load_prices(None) == {}


def test_a_model_has_a_truncation_and_a_price_or_the_defaults(tmp_path: Path) -> None:
    tiers(tmp_path, '[models.m]\ntruncation = "auto"\n[models."n/1".price]\ninput = 1\n')
    models = load_models(tmp_path / "mulgil.toml")
    assert {name: model.truncation for name, model in models.items()} == {"m": "auto", "n/1": "disabled"}
    assert [model.price.input for model in models.values()] == [Decimal(0), Decimal(1)]
    assert load_models(None) == {}


def test_an_adapter_has_a_folder(tmp_path: Path) -> None:
    tiers(tmp_path, '[adapters.a]\npath = "/models/a"\n[adapters."b.1"]\npath = "/models/b"\n')
    assert load_adapters(tmp_path / "mulgil.toml") == {"a": Path("/models/a"), "b.1": Path("/models/b")}
    assert load_adapters(None) == {}


def test_a_file_that_is_given_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        load_tiers(tmp_path / "mulgil.toml")


@pytest.mark.parametrize(
    ("of_key", "of_tier", "allowed"),
    [
        (None, (), True),
        (("m",), (), True),
        (None, ("m", "n"), True),
        (("m",), ("m",), True),
        (("n",), (), False),
        (None, ("n",), False),
        (("m",), ("n",), False),
        (("n",), ("m",), False),
    ],
)
def test_a_model_must_be_allowed_by_the_key_and_by_its_tier(
    of_key: tuple[str, ...] | None, of_tier: tuple[str, ...], allowed: bool
) -> None:
    tier = Tier(models=of_tier) if of_tier else Tier()
    if allowed:
        check_model_allowed("m", of_key, tier)
        return
    with pytest.raises(PermissionDeniedError) as refused:
        check_model_allowed("m", of_key, tier)
    assert (refused.value.status, refused.value.type, refused.value.code) == (
        403,
        "permission_error",
        "model_not_allowed",
    )
    assert refused.value.param == "model"
