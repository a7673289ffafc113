"""What a replay is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nereid_client.tape.rows import Row
from nereid_client.tools.perf.options import Address

Where = Callable[[Row], bool]


class ReplayError(Exception):
    """There can be no replay; the text says why."""


@dataclass(frozen=True)
class Options:
    """A replay.

    Attributes:
        speed: times as fast as the rows were recorded; 0 for as fast as it goes.
        where: chooses rows.
        rows: at most so many, the newest.
        models: names to ask for, by the recorded ones.
        version: that is asked for; "" for what each row asked for.
        beside: the server whose answers are compared; None for the recorded ones.
        in_flight: requests of a load that is as fast as it goes.
        noise: at most so many rows are asked for twice, to know how much right answers differ.
        threshold: the share by which a latency may be larger.
        max_bytes: of the requests of a run, and of its answers, on the disk.
        max_seconds: that the rows may take at their speed.
    """

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    speed: float = 1.0
    where: Where | None = None
    rows: int = 100_000
    models: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    beside: Address | None = None
    in_flight: int = 8
    noise: int = 200
    threshold: float = 0.10
    max_bytes: int = 8 << 30
    max_seconds: float = 86_400.0
    timeout_s: float = 30.0
    processes: int = 1
    connections: int = 1024
