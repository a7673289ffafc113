"""An engine that records, its fronts, and clients of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from app.settings.load import from_args
from nereid.engine.engine import Engine
from nereid.engine.fronts import Fronts
from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import Row
from tests.server import free_port
from tests.waiting import block_until

ROW = np.array([1.0, 2.0], np.float32)


class Bench:
    """A server of a repository that records to a directory beside it."""

    def __init__(self, repository: Path, directory: Path, **flags: Any) -> None:
        self.directory = directory
        self.port, self.grpc_port, self.openai_port = free_port(), free_port(), 0
        given = {
            "model_repository": str(repository),
            "http_port": self.port,
            "grpc_port": self.grpc_port,
            "allow_metrics": False,
            "tape": str(directory),
            "tape_rate": 1.0,
            **flags,
        }
        self.engine = Engine(from_args(given), lends_loop=False)
        self.engine.start()
        self.fronts = Fronts(self.engine)
        self.fronts.open()
        self.http = tritonclient.http.InferenceServerClient(f"127.0.0.1:{self.port}")
        self.grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self.grpc_port}")

    def close(self) -> None:
        """End it; everything is written then."""
        self.http.close()
        self.grpc.close()
        self.fronts.close(0.5)
        self.engine.close()

    def over(self, protocol: str, model: str, data: Any = ROW, **options: Any) -> Any:
        """Make a request with one input; return the output."""
        module = getattr(tritonclient, protocol)
        array = np.asarray(data)
        given = module.InferInput("IN", array.shape, "BYTES" if array.dtype == object else "FP32")
        given.set_data_from_numpy(array)
        return getattr(self, protocol).infer(model, [given], **options).as_numpy("OUT")

    def dropped(self) -> int:
        """Return how many rows were dropped."""
        assert self.engine.tape is not None
        return sum(self.engine.tape.counts.dropped.values())

    def rows(self, number: int, seen: Callable[[Row], bool] = lambda row: True) -> list[Row]:
        """Wait until so many rows are written; return them."""
        found: list[Row] = []

        def written() -> bool:
            found[:] = rows_of(self.directory, seen)
            return len(found) >= number

        block_until(written, f"{len(found)} of {number} rows")
        return found


def rows_of(directory: Path, seen: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Return the rows of a tape; none where there is none yet."""
    if not list(directory.rglob("*.open")) and not list(directory.rglob("*.tape")):
        return []
    return [row for row in Tape(directory).rows() if seen(row)]
