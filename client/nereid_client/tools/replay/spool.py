"""Requests of a plan as bytes in a file, as they are sent to one server."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import structs

from nereid_client.http import encode_request
from nereid_client.messages import Input, Output, Parameter, Request
from nereid_client.tape.rows import Row, TapeTensor
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.http2 import grpc_payload
from nereid_client.tools.perf.generator.job import Endpoint, Rows, Script
from nereid_client.tools.perf.options import Address
from nereid_client.tools.replay.options import ReplayError
from nereid_client.tools.replay.plan import Plan

_SERVICE: Final = "/inference.GRPCInferenceService/"


@dataclass(frozen=True)
class Target:
    """Where requests go, and what is asked for there.

    Attributes:
        models: names there, by the recorded ones.
        version: that is asked for, whatever a row asked for; "" for what it did.
        recorded: models and versions that are asked for by name where they had answered.
        decoupled: recorded names of models whose requests have any number of responses there.
    """

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    recorded: frozenset[tuple[str, str]] = frozenset()
    decoupled: frozenset[str] = frozenset()

    def endpoint(self) -> Endpoint:
        """Return where a generator sends."""
        address = self.address
        return Endpoint(
            address.protocol,
            address.host,
            address.port,
            f"{_SERVICE}ModelInfer",
            tuple(self.headers.items()),
            address.tls,
            stream_path=f"{_SERVICE}ModelStreamInfer",
        )

    def request(self, row: Row, sequence: int | str) -> Request:
        """Return what a row asked for, as it is asked for here; `sequence` is the id of its sequence."""
        version = self.version or row.asked_version
        if (row.model, row.version) in self.recorded:
            version = row.version
        return Request(
            self.models.get(row.model, row.model),
            version,
            tuple(_input(tensor) for tensor in row.inputs),
            tuple(Output(name) for name in row.requested),
            row.id,
            _parameters(row, sequence),
        )


def _input(tensor: TapeTensor) -> Input:
    return Input(tensor.name, tensor.datatype, tensor.shape, memoryview(tensor.data).cast("B"))


def _parameters(row: Row, sequence: int | str) -> dict[str, Parameter]:
    found: dict[str, Parameter] = dict(row.parameters)
    if row.sequence_id:
        found["sequence_id"] = sequence
        found["sequence_start"], found["sequence_end"] = row.sequence_start, row.sequence_end
    if row.priority:
        found["priority"] = row.priority
    if row.timeout_us:
        found["timeout"] = row.timeout_us
    return found


class Spool:
    """The file of one run.

    Args:
        path: of the file to write, with a name of its own.
        most: bytes of it.

    Attributes:
        refused: rows that cannot be sent, by the reason.
        requests: what `Script` says of them, once it is closed. A sequence whose end is not in the plan
            is ended by one more request, of a number below 0: else it would keep its place in the server, and
            other sequences would wait for that.
    """

    def __init__(self, path: Path, target: Target, plan: Plan, most: int) -> None:
        self.path, self.target, self.plan = path, target, plan
        self.refused: Counter[str] = Counter()
        self.requests: Rows
        self._most = most
        self._unfinished = plan.unfinished()
        self._numbers = {row.key: number for number, row in enumerate(plan.rows)}
        self._first = secrets.randbelow(1 << 29) + (1 << 29)  # none that clients have, and 31 bits
        self._file = path.open("wb")
        self._places: list[tuple[int, int, int, int, int]] = []
        self._end = 0

    def add(self, row: Row) -> None:
        """Write the request of a row that is in the plan; others are ignored.

        Raises:
            ReplayError: there is too much.
        """
        number = self._numbers.get(row.key)
        if number is None:
            return
        if self._write(row, number, number) and number in self._unfinished:
            self._write(structs.replace(row, sequence_start=False, sequence_end=True), number, -1 - number)

    def _write(self, row: Row, number: int, named: int) -> bool:
        """Write a request, with what `Script` names it by; return whether a client can send it."""
        try:
            parts = self._parts(self.target.request(row, self._sequence(row, number)))
        except (
            ValueError,
            TypeError,
            OverflowError,
        ) as error:  # as of names and numbers that nobody has sent
            self.refused[f"no request of {self.target.address.protocol}: {error}"] += 1
            return False
        size = sum(map(len, parts))
        if self._end + size > self._most:
            raise ReplayError(
                f"the requests take more than {self._most >> 20} MiB: choose rows with --where or --rows, or "
                "give --max-mb"
            )
        self._file.writelines(parts)
        planned = self.plan.rows[number]
        streams = int(planned.model in self.target.decoupled)
        self._places.append((named, self._end, size, planned.sequence, streams))
        self._end += size
        return True

    def _sequence(self, row: Row, number: int) -> int | str:
        """Return the id of a row's sequence in this run: that of no other run."""
        own = self._first + self.plan.rows[number].sequence
        return f"replay-{own}" if isinstance(row.sequence_id, str) else own

    def _parts(self, request: Request) -> list[Any]:
        if self.target.address.protocol == "grpc":
            from nereid_client.grpc import encode_request as message

            return [grpc_payload(message(request))]
        sent = encode_request(request)
        endpoint = replace(self.target.endpoint(), path=sent.path)
        return [http_request(endpoint, dict(sent.headers), b""), *sent.body]

    def close(self) -> None:
        """Write no more."""
        self._file.close()
        self.requests = np.array(self._places, np.int64).reshape(-1, 5)

    @property
    def rows(self) -> Rows:
        """Of each request the number of its row, or of that whose sequence it ends."""
        numbers = self.requests[:, 0]
        return np.where(numbers < 0, -1 - numbers, numbers)

    def script(self) -> Script:
        """Return the script of these requests."""
        return Script(str(self.path), f"{self.path}.answers", self.requests)
