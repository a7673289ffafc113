"""Prices of what is consumed: the file that gives them, and what rows of the ledger cost by it. Pure."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from app.core.cost.rows import LedgerRow

Price = Annotated[float, msgspec.Meta(ge=0)]
CORE_SECONDS: Final = "core-seconds"
"""The unit of what is consumed without prices."""
_HOUR_S: Final = 3600.0
_GIB: Final = float(1 << 30)
_JOULES: Final = 3.6e6
"""Of a kWh."""
_MAX_BYTES: Final = 1 << 20


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The contents of a price file, in YAML.

    Attributes:
        currency: of all prices: three capital letters.
        cpu_core_hour: of a core for an hour.
        memory_gib_hour: of a GiB of memory for an hour.
        gpu_hour: of a GPU for an hour, by its name or a pattern (`NVIDIA H100*`): the first that fits counts.
        energy_kwh: of a kWh, where the machine's price does not have it in it.
        egress_gib: of a GiB that is sent to clients.
        watts_per_core: what a busy core consumes, where energy cannot be measured; it is then an estimate.
    """

    currency: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]
    cpu_core_hour: Price = 0.0
    memory_gib_hour: Price = 0.0
    gpu_hour: dict[str, Price] = {}
    energy_kwh: Price = 0.0
    egress_gib: Price = 0.0
    watts_per_core: Price | None = None

    def gpu(self, name: str) -> float:
        """Return the price of an hour of a GPU; 0 for one that has none."""
        return next((price for key, price in self.gpu_hour.items() if fnmatchcase(name, key)), 0.0)


class Energy(NamedTuple):
    """Energy in joules, and whether it is an estimate; None if it is not known."""

    joules: float | None
    estimated: bool = False


class Amount(NamedTuple):
    """What rows cost, in the currency of the prices."""

    cpu: float = 0.0
    memory: float = 0.0
    gpu: float = 0.0
    energy: float = 0.0
    egress: float = 0.0

    @property
    def total(self) -> float:
        """The sum."""
        return sum(self)

    def plus(self, other: "Amount") -> "Amount":
        """Return the sums of both."""
        return Amount(*(one + another for one, another in zip(self, other, strict=True)))


def read_prices(path: str | Path) -> Prices:
    """Read a price file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no price file; the text says where and why.
    """
    with open(path, "rb") as file:
        return parse_prices(file.read(_MAX_BYTES))


def parse_prices(text: bytes | str) -> Prices:
    """Parse the text of a price file.

    Raises:
        ValueError: it has other fields, or values that are no prices.
    """
    try:
        prices = msgspec.yaml.decode(text, type=Prices)
    except msgspec.ValidationError as error:
        raise ValueError(_said(str(error))) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"it is no YAML: {' '.join(str(error).split())}") from None
    for name, price in [*_numbers(prices), *prices.gpu_hour.items()]:
        if price == float("inf"):
            raise ValueError(f"{name}: {price} is no price")
    return prices


def _said(error: str) -> str:
    """Return an error of msgspec with the place in front, as in `gpu_hour: ...`."""
    text, _, place = error.partition(" - at ")
    return f"{place.strip('`').removeprefix('$.')}: {text}" if place.strip("`") not in ("", "$") else text


def _numbers(prices: Prices) -> list[tuple[str, float]]:
    fields = msgspec.structs.asdict(prices)
    return [(name, value) for name, value in fields.items() if isinstance(value, float)]


def energy(row: LedgerRow, prices: Prices | None) -> Energy:
    """Return what a row has consumed, estimated by the price file where it was not measured."""
    if row.energy_joules is not None:
        return Energy(row.energy_joules)
    if prices is None or prices.watts_per_core is None:
        return Energy(None)
    return Energy(row.cpu_seconds * prices.watts_per_core, estimated=True)


def price(row: LedgerRow, prices: Prices) -> Amount:
    """Return what a row costs by what was consumed. Energy that is not known costs nothing."""
    return Amount(
        row.cpu_seconds / _HOUR_S * prices.cpu_core_hour,
        row.memory_gib_seconds / _HOUR_S * prices.memory_gib_hour,
        row.gpu_seconds / _HOUR_S * prices.gpu(row.gpu),
        (energy(row, prices).joules or 0.0) / _JOULES * prices.energy_kwh,
        row.bytes_out / _GIB * prices.egress_gib,
    )


def spent(row: LedgerRow, unit: str, prices: Prices | None) -> float:
    """Return how much a row takes of a budget of a unit: `CORE_SECONDS`, or the currency of the prices."""
    if unit == CORE_SECONDS:
        return row.cpu_seconds
    return 0.0 if prices is None or prices.currency != unit else price(row, prices).total
