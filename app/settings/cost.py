"""Settings of the account of what models, versions and clients consume."""

from typing import Annotated as A

import msgspec

from app.core.cost.prices import read_prices
from app.settings.flag import parsers
from app.settings.flag.flags import Flag


def _prices(path: str) -> str:
    """Return the absolute path of `--cost-prices`, which can be read."""
    found = parsers.absolute(path)
    try:
        if found:
            read_prices(found)
    except OSError as error:
        raise ValueError(f"--cost-prices: '{path}': {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"--cost-prices: '{path}': {error}") from None
    return found


class CostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured of costs, and where it is kept."""

    enabled: A[
        bool, Flag("cost", "Account for the processor time, memory and energy of models and clients.")
    ] = True
    directory: A[
        str,
        Flag(
            "cost_directory",
            "Directory of the hourly ledger of costs; by default 'cost' in --state-directory.",
            parse=parsers.absolute,
        ),
    ] = ""
    prices: A[
        str,
        Flag("cost_prices", "File of prices, for budgets of tokens in money.", parse=_prices),
    ] = ""
