"""A router and replicas that are made up, for the service and the metrics above them."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.drift.status import DriftStatus
from app.core.observability.statistics import Duration, ReplicaReport
from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.core.tensors import InferRequest, InferResponse
from app.ensemble.runner import EnsembleRunner
from app.rollout.traffic import RolloutTraffic
from app.routing.manager_client import LoadRequest
from app.routing.table import ModelState, NotLoaded, RoutingTable, VersionEntry
from app.settings.settings import ServerSettings
from tests.unit.app.drift_fakes import drift_status
from tests.unit.app.rollout_fakes import rollout, rollout_history
from tests.unit.composed import Composed

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


def counters(**fields: Any) -> ReplicaReport:
    """Make a replica's report; a duration of 3 is 3 requests of 1000 ns each."""
    report = ReplicaReport()
    for name, value in fields.items():
        is_duration = isinstance(getattr(report, name), Duration)
        setattr(report, name, Duration(value, 1000 * value) if is_duration else value)
    return report


class FakeChannel:
    """A replica's channel that answers `statistics`, or raises."""

    def __init__(self, answer: ReplicaReport | Exception, suspected: str = "") -> None:
        self.answer = answer
        self.suspected = suspected
        self.ready = not suspected

    async def control(self, verb: str, payload: Any = None, timeout: float | None = None) -> Any:
        assert (verb, payload) == ("statistics", None)
        assert timeout is not None and timeout < 10, "Prometheus gives up after 10 s"
        if isinstance(self.answer, Exception):
            raise self.answer
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self.answer))


class FakePool:
    def __init__(
        self, local: list[FakeChannel], remote: list[FakeChannel], losses: dict[str, int] | None = None
    ) -> None:
        self.channels = [*local, *remote]
        self.local = local
        self.losses = losses or {}

    def local_channels(self) -> list[FakeChannel]:
        return self.local


class FakeCall:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self, advice: bool = False) -> None:
        self.cancelled = True


class FakeRouter(Composed):
    """Routes by `table` to nobody; `out` are applications without a connected replica."""

    def __init__(self, *entries: VersionEntry, initialised: bool = True) -> None:
        self.table = RoutingTable(1, initialised, entries, all_loaded=initialised)
        self.out: set[str] = set()
        self.pools: dict[str, FakePool] = {}
        self.calls: list[FakeCall] = []
        self.ensembles = EnsembleRunner(self)
        self.rollouts = RolloutTraffic(cast(Any, self))
        self.waiting = None
        self.requests: list[InferRequest] = []
        self.sinks: list[Callable[[InferResponse], None]] = []

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        return self.table.resolve(name, version)

    async def wait_loaded(self, found: VersionEntry) -> None:
        raise NotLoaded(found)

    def available(self, found: VersionEntry) -> bool:
        return found.state is ModelState.READY and found.application not in self.out

    def trouble(self, found: VersionEntry) -> str:
        return "replica r: stopped" if found.application in self.out else ""

    def pool(self, found: VersionEntry) -> FakePool:
        return self.pools.get(found.application, FakePool([], []))

    def submit(
        self, found: VersionEntry, request: InferRequest, sink: Callable[[InferResponse], None]
    ) -> FakeCall:
        assert self.table.is_current(found)
        self.calls.append(FakeCall())
        self.requests.append(request)
        self.sinks.append(sink)
        return self.calls[-1]


class FakeRepository:
    """The repository manager as the service sees it."""

    def __init__(self, *rows: tuple[str, str, str, str]) -> None:
        self.rows = list(rows)
        self.calls: list[tuple[Any, ...]] = []

    async def index(self) -> list[tuple[str, str, str, str]]:
        return self.rows

    async def load(self, asked: LoadRequest) -> None:
        self.calls.append(
            ("load", asked.name, asked.config, asked.files, *filter(None, [asked.directory, asked.who]))
        )

    async def registered(self) -> dict[str, str]:
        return {}

    async def unload(self, name: str, unload_dependents: bool, *, who: str = "") -> None:
        self.calls.append(("unload", name, unload_dependents, *filter(None, [who])))

    async def rollout(self, name: str) -> RolloutStatus:
        return rollout(model=name)

    async def change_rollout(self, name: str, change: RolloutChange, who: str) -> RolloutStatus:
        self.calls.append(("rollout", name, change, who))
        return rollout(model=name)

    async def drift(self, name: str, version: str = "") -> DriftStatus:
        return drift_status(name, version)

    async def rollout_history(self, name: str) -> RolloutHistory:
        return rollout_history(model=name)


SETTINGS = ServerSettings()
