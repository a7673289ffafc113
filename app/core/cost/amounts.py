"""What is consumed, by the names of the ledger. Pure."""

from typing import Any, Final

import msgspec


class Consumption(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was consumed in an interval; additive. The fields are those of `LedgerRow`."""

    cpu_seconds: float = 0.0
    memory_gib_seconds: float = 0.0
    reserved_core_seconds: float = 0.0
    reserved_gib_seconds: float = 0.0
    gpu_seconds: float = 0.0
    gpu_gib_seconds: float = 0.0
    energy_joules: float | None = 0.0

    @property
    def works(self) -> bool:
        """Whether anything was computed."""
        return self.cpu_seconds > 0 or self.gpu_seconds > 0

    @property
    def figures(self) -> dict[str, Any]:
        """The fields, for a `LedgerRow`."""
        return msgspec.structs.asdict(self)

    def __add__(self, other: "Consumption") -> "Consumption":
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        mine, theirs = self.energy_joules, other.energy_joules
        return Consumption(**sums, energy_joules=None if mine is None or theirs is None else mine + theirs)

    def part(self, share: float) -> "Consumption":
        """Return a share of it."""
        parts = {name: getattr(self, name) * share for name in _SUMS}
        energy = self.energy_joules
        return Consumption(**parts, energy_joules=None if energy is None else energy * share)


_SUMS: Final = tuple(name for name in Consumption.__struct_fields__ if name != "energy_joules")
