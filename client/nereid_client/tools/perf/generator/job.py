"""Messages between a run and the processes of its load generators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from nereid_client import Tls
from nereid_client.datatypes import Array
from nereid_client.tools.digits import all_digits
from nereid_client.tools.perf.generator.arrivals import Offsets

COLUMNS: Final = ("intended", "noticed", "sent", "ended", "status", "first", "responses")
"""Of a record: nanoseconds of the monotonic clock, and an `End`.

`intended` is when the request should have begun, `noticed` when the generator saw that, `sent` when a
connection was free; `first` is the moment of the first response of a stream, else 0.
"""


Rows = np.ndarray[Any, np.dtype[np.int64]]
"""Records, a row of `COLUMNS` each."""


class End(IntEnum):
    """How a request ended."""

    OK = 0
    REFUSED = 1
    """The server answered with an error."""
    CUT = 2
    """The connection failed."""
    LATE = 3
    """There was no answer in time."""
    WRONG = 4
    """The answer is not the expected one."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go: the same path and headers for all of a run.

    Attributes:
        protocol: "http" or "grpc".
        varied: over gRPC, further headers: each call has those of one place, in turn.
        tls: None for a connection without it.
        streaming: an answer has any number of responses.
        stream_path: over gRPC, where those requests of a script go that have any number of responses.
    """

    protocol: str
    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    tls: Tls | None = None
    streaming: bool = False
    varied: tuple[tuple[tuple[str, str], ...], ...] = ()
    stream_path: str = ""


class Script(NamedTuple):
    """Requests that are each sent once.

    Attributes:
        requests: path of the file with their payloads.
        answers: path of the file that gets what is answered.
        rows: int64, of each request its number, its place and size in the file, its sequence (-1 for none),
            and 1 if it has any number of responses.
    """

    requests: str
    answers: str
    rows: Rows


@dataclass(frozen=True)
class Job:
    """The load of one generator.

    Attributes:
        payloads: what is sent, in turn: whole HTTP requests, or gRPC messages with their length before them.
        sequences: instead of `payloads`: the steps of each sequence; so many sequences run at a time.
        script: instead of both: requests that are each sent once; `arrivals` are theirs.
        arrivals: of an open loop; None for a closed one.
        concurrency: requests in flight of a closed loop.
        connections: at most so many.
        timeout_s: without an answer after so long, a request has failed.
        expected: the responses to each payload, where they are checked: one, or those of a stream.
        tolerance: relative, of that check.
    """

    endpoint: Endpoint
    payloads: tuple[bytes, ...]
    sequences: tuple[tuple[bytes, ...], ...] = ()
    arrivals: Offsets | None = None
    concurrency: int = 0
    connections: int = 1024
    timeout_s: float = 30.0
    expected: tuple[tuple[Mapping[str, Array], ...], ...] = ()
    tolerance: float = 1e-5
    script: Script | None = None


@dataclass
class Told:
    """What a generator has seen so far.

    Attributes:
        records: rows of `COLUMNS`, int64, as bytes.
        moments: of the responses of streams, one record after the other, int64, as bytes.
        kept: of a script, for each record: number of the request, place and size of its answer, int64.
        errors: texts of failed requests, with their number.
        cpu_s: CPU time of the generator since it began.
    """

    records: bytes = b""
    moments: bytes = b""
    kept: bytes = b""
    errors: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0


class Level(NamedTuple):
    """A load: `kind` is "rate" in requests a second, or "concurrency" in requests in flight."""

    kind: str
    value: float

    def __str__(self) -> str:
        return all_digits(self.value) + ("/s" if self.kind == "rate" else " in flight")


def rows_of(told: Sequence[Told]) -> Rows:
    """Return the records of several generators."""
    data = b"".join(each.records for each in told)
    return np.frombuffer(data, np.int64).reshape(-1, len(COLUMNS))
