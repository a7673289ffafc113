"""A router and replicas that are made up, for the service and the metrics above them."""

from collections.abc import Callable
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from app.core.tensors import InferRequest, InferResponse
from app.routing.table import ModelState, RoutingTable, VersionEntry
from app.settings.settings import ServerSettings

CONFIG = """
backend: "identity"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""


def entry(
    name: str, version: int = 1, state: ModelState = ModelState.READY, config: str = CONFIG, **fields: Any
) -> VersionEntry:
    message = text_format.Parse(config, mc.ModelConfig(name=name))
    application = f"{name}:{version}" if state is ModelState.READY else ""
    return VersionEntry(
        name,
        version,
        state,
        application=application,
        config=message.SerializeToString(deterministic=True),
        **fields,
    )


def counters(
    name: str = "m", version: int = 1, pending: int = 0, failures: dict[str, int] | None = None, **counts: int
) -> dict[str, Any]:
    """What a replica answers; `counts` are `success=3` (3 requests of 1000 ns each) and so on."""
    message = pb.ModelStatistics(name=name, version=str(version))
    for field, count in counts.items():
        if field in ("inference_count", "execution_count", "last_inference"):
            setattr(message, field, count)
        else:
            duration = getattr(message.inference_stats, field)
            duration.count, duration.ns = count, 1000 * count
    return {"statistics": message.SerializeToString(), "failures": failures or {}, "pending": pending}


class FakeChannel:
    """A replica's channel that answers `statistics`, or raises."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer

    async def control(self, verb: str, payload: Any = None, timeout: float | None = None) -> Any:
        assert (verb, payload) == ("statistics", None)
        assert timeout is not None and timeout < 10, "Prometheus gives up after 10 s"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakePool:
    def __init__(self, local: list[FakeChannel], remote: list[FakeChannel]) -> None:
        self.channels = [*local, *remote]
        self.local = local

    def local_channels(self) -> list[FakeChannel]:
        return self.local


class FakeCall:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeRouter:
    """Routes by `table` to nobody; `out` are applications without a connected replica."""

    def __init__(self, *entries: VersionEntry, initialised: bool = True) -> None:
        self.table = RoutingTable(1, initialised, entries)
        self.out: set[str] = set()
        self.pools: dict[str, FakePool] = {}
        self.calls: list[FakeCall] = []
        self.sinks: list[Callable[[InferResponse], None]] = []

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        return self.table.resolve(name, version)

    def available(self, found: VersionEntry) -> bool:
        return found.state is ModelState.READY and found.application not in self.out

    def pool(self, found: VersionEntry) -> FakePool:
        return self.pools.get(found.application, FakePool([], []))

    def submit(
        self, found: VersionEntry, request: InferRequest, sink: Callable[[InferResponse], None]
    ) -> FakeCall:
        assert self.table.is_current(found)
        self.calls.append(FakeCall())
        self.sinks.append(sink)
        return self.calls[-1]


class FakeRepository:
    """The repository manager as the service sees it."""

    def __init__(self, *rows: tuple[str, str, str, str]) -> None:
        self.rows = list(rows)
        self.calls: list[tuple[Any, ...]] = []

    async def index(self) -> list[tuple[str, str, str, str]]:
        return self.rows

    async def load(self, name: str, config: str | None, files: Any) -> None:
        self.calls.append(("load", name, config, files))

    async def unload(self, name: str, unload_dependents: bool) -> None:
        self.calls.append(("unload", name, unload_dependents))


SETTINGS = ServerSettings()
