"""A server for tests of the client: an engine of this process, with its fronts."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nereid.engine.engine import Engine
from nereid.engine.fronts import Fronts
from tests.server import free_port


class Addresses(NamedTuple):
    """URLs of the fronts."""

    http: str
    grpc: str


def serve(repository: Path, tls: bool = False, **flags: object) -> Iterator[Addresses]:
    """Open the fronts of an engine, until the generator is left."""
    ports = free_port(), free_port()
    given = {"model_control_mode": "explicit", "allow_metrics": False, **flags}
    given |= {"http_port": ports[0], "grpc_port": ports[1]}
    with Engine.open(model_repository=[str(repository)], **given) as engine:
        fronts = Fronts(engine)
        fronts.open()
        end = "s" if tls else ""
        yield Addresses(f"http{end}://127.0.0.1:{ports[0]}", f"grpc{end}://127.0.0.1:{ports[1]}")
        fronts.close(1.0)
