"""The composition root's part for usage: the ledger that the settings name."""

from collections.abc import Mapping
from dataclasses import dataclass

from mulgil.config_file import load_prices
from mulgil.ledger.base import Ledger, NoLedger
from mulgil.ledger.database import UsageDatabase
from mulgil.ledger.keeping import UsageLedger
from mulgil.ledger.reports import UsageReports
from mulgil.ledger.spending import Spending
from mulgil.ledger.spool import Spool
from mulgil.settings import Settings
from mulgil.tiers import Tier


@dataclass(frozen=True, slots=True)
class Usage:
    """What keeps usage in one process, and what tells of it; nothing does where none is kept."""

    ledger: Ledger
    reports: UsageReports | None


def build_usage(settings: Settings, tiers: Mapping[str, Tier]) -> Usage:
    """What the settings ask for.

    Raises:
        ValueError: it cannot be kept there, or a tier has quotas and it is not to be kept.
    """
    prices = load_prices(settings.config)
    bounded = [name for name, tier in tiers.items() if tier.has_quota or (tier.tenant and tier.tenant.has_quota)]
    if settings.usage_database is None:
        if bounded:
            raise ValueError(f"the tier '{bounded[0]}' has a quota, which needs what 'usage_url' = off does not keep")
        return Usage(NoLedger(), None)
    database = build_usage_database(settings)
    try:
        spool = Spool(settings.usage_folder)
    except OSError as error:
        raise ValueError(
            f"'state_folder' cannot be written ({error}): set MULGIL_STATE_FOLDER to a folder that can, "
            "or MULGIL_USAGE_URL=off to keep no usage"
        ) from None
    ledger = UsageLedger(database, spool, Spending(prices, counts=bool(bounded)))
    return Usage(ledger, UsageReports(database, prices))


def build_usage_database(settings: Settings) -> UsageDatabase:
    """The database that the settings name.

    Raises:
        ValueError: its URL is wrong, or there is none.
    """
    if settings.usage_database is None:
        raise ValueError("no usage is kept, since 'usage_url' is off")
    try:
        return UsageDatabase(settings.usage_database)
    except ValueError as error:
        raise ValueError(f"'usage_url': {error}") from None
