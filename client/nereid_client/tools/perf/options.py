"""The options of a run: the fields of the command line, read and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nereid_client import Tls
from nereid_client.tools.perf.generator.job import Level

_MAX_LEVELS: Final = 1000
DEFAULT_PORTS: Final = {"http": 8000, "grpc": 8001}


class PerfError(Exception):
    """Something that the user has to change; the text says what."""


@dataclass(frozen=True)
class Address:
    """An endpoint of a server."""

    protocol: str
    host: str
    port: int
    tls: Tls | None = None

    @property
    def url(self) -> str:
        """As the client library reads it."""
        return f"{self.protocol}{'s' if self.tls else ''}://{self.host}:{self.port}"


@dataclass(frozen=True)
class Options:
    """A run.

    Attributes:
        levels: loads to measure, in this order; none are chosen by what the server can do.
        data: "random", "zero", or the path of a file, directory or tape.
        cut: requests of a tape have `batch` rows each, not as many as were recorded.
        shapes: of inputs, without the batch dimension.
        window_s: seconds of a window.
        windows: at most so many in a level, until `agreeing` of them agree within `stability` (a share).
        duration_s: seconds of a level, whatever the windows say; 0 for as many windows as it takes.
        requests: of a level, which ends when they have been answered; 0 for any number.
        window_requests: a window ends when so many have been answered; 0 for windows of `window_s`.
        percentile: by which windows are compared; 0 for the mean.
        percentiles: that are wanted besides the usual ones.
        search_s: at most so many seconds for the search of a rate.
    """

    model: str
    address: Address
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    slo: str = ""
    distribution: str = "poisson"
    intervals: Path | None = None
    batch: int = 1
    streaming: bool = False
    data: str = "random"
    cut: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    string_data: str = ""
    string_length: int = 128
    shared_memory: str = "none"
    sequences: int = 0
    sequence_length: int = 20
    first_sequence: int = 1
    expect: str = ""
    tolerance: float = 1e-5
    window_s: float = 5.0
    windows: int = 10
    agreeing: int = 3
    stability: float = 0.10
    duration_s: float = 0.0
    requests: int = 0
    window_requests: int = 0
    warmup_s: float = 1.0
    percentile: int = 0
    percentiles: tuple[float, ...] = ()
    search_s: float = 300.0
    processes: int = 1
    connections: int = 1024
    timeout_s: float = 30.0
    seed: int = 0


def read_address(url: str, protocol: str, tls: Tls | None = None) -> Address:
    """Return the endpoint of "host", "host:port" or "scheme://host:port".

    Raises:
        PerfError: it is none.
    """
    found = re.fullmatch(r"(?:(https?|grpcs?)://)?(\[[^\]]+\]|[^:/\s]+)(?::(\d+))?/?", url)
    if found is None:
        raise PerfError(f"'{url}' is no address: give HOST:PORT")
    scheme, host, port = found.groups()
    if scheme:
        protocol = scheme.rstrip("s") if scheme.startswith("grpc") else "http"
        tls = tls or (Tls() if scheme.endswith("s") else None)
    return Address(protocol, host.strip("[]"), int(port or DEFAULT_PORTS[protocol]), tls)


def read_levels(kind: str, text: str) -> tuple[Level, ...]:
    """Return the loads of "5", "5,10,20" or "start:end:step", the end included.

    Raises:
        PerfError: the text names none.
    """
    try:
        if ":" in text:
            values = _steps(*(float(part) for part in text.split(":")))
        else:
            values = [float(part) for part in text.split(",")]
    except (ValueError, TypeError):
        raise PerfError(f"'{text}' is no load: give 5, 5,10,20 or START:END:STEP") from None
    whole = kind == "rate" or all(value.is_integer() for value in values)
    if not values or not all(0 < value < math.inf for value in values) or not whole:
        raise PerfError(f"'{text}' is no load: numbers above 0, whole ones for a concurrency")
    return tuple(Level(kind, value) for value in values)


def _steps(start: float, end: float, step: float = 1.0) -> list[float]:
    if step <= 0 or end < start or (end - start) / step > _MAX_LEVELS:
        raise ValueError
    return [start + i * step for i in range(int((end - start) / step + 1e-9) + 1)]


def read_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the input and dimensions of "NAME:3,224,224".

    Raises:
        PerfError: the text is none.
    """
    name, colon, dims = text.rpartition(":")
    if not colon or not re.fullmatch(r"\d+(,\d+)*", dims):
        raise PerfError(f"'{text}' is no shape: give NAME:3,224,224, without the batch dimension")
    return name, tuple(int(dim) for dim in dims.split(","))
