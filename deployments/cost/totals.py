"""Processor seconds since the manager's start, for metrics. Bounded: what comes late is added up together."""

from typing import Final

from app.core.cost.reports import CostAnswer, VersionCost
from app.core.cost.rows import OTHER

_VERSIONS: Final = 1000
_CLIENTS: Final = 100
"""As many names of tokens have metrics of their own."""


class Totals:
    """The figures that never fall.

    Attributes:
        measured_s: of all processes.
    """

    def __init__(self) -> None:
        self.measured_s = 0.0
        self._versions: dict[tuple[str, int], list[float]] = {}
        self._clients: dict[str, float] = {}
        self._overhead: dict[str, float] = {}

    def version(self, model: str, version: int, client: str | None, seconds: float) -> None:
        """Add what a version has used for a client; for None without any request."""
        key = model, version
        if key not in self._versions and len(self._versions) >= _VERSIONS:
            key = OTHER, 0
        found = self._versions.setdefault(key, [0.0, 0.0])
        found[client is None] += seconds
        if client:
            name = client if client in self._clients or len(self._clients) < _CLIENTS else OTHER
            self._clients[name] = self._clients.get(name, 0.0) + seconds

    def overhead(self, kind: str, seconds: float) -> None:
        """Add what processes of a kind have used."""
        self._overhead[kind] = self._overhead.get(kind, 0.0) + seconds

    def answer(self, spent: dict[str, tuple[str, float]]) -> CostAnswer:
        """Return the figures of now."""
        versions = tuple(VersionCost(*key, *used) for key, used in self._versions.items())
        return CostAnswer(versions, dict(self._clients), dict(self._overhead), self.measured_s, spent)
