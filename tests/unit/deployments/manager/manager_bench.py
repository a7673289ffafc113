"""Repository managers over a fake of Serve."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.rollout.split import Split
from app.ray_adapter.serve.applications import ReplicaCounts
from app.routing.manager_client import LoadRequest
from app.routing.table import RoutingTable
from app.routing.table_bytes import decode_table
from app.settings.load import from_args
from deployments.manager import manager
from deployments.manager.manager import RepositoryManager
from deployments.manager.serve import applications
from deployments.manager.serve.applications import ModelApplication, parse_application
from deployments.parameters import replica_parameters
from deployments.rollout.storage import state_files
from deployments.scaling import autoscaler
from deployments.spec import Description, ModelSpec
from tests.unit.deployments.model_directories import CONFIG, KEY, add


class FakeStore:
    """The cluster's store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def read(self, key: str) -> bytes | None:
        return self.values.get(key)

    def write(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def remove(self, key: str) -> None:
        self.values.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.values if key.startswith(prefix)]


class FakeServe:
    """Replaces the functions of `deployments.manager.serve.applications`."""

    def __init__(self) -> None:
        self.running: dict[str, Description] = {}
        self.down: set[str] = set()
        self.failures: dict[str, Exception | str] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.deployed: list[str] = []
        self.updated: list[ModelSpec] = []
        self.deleted: list[str] = []
        self.killed: list[str] = []
        self.may_delete = asyncio.Event()
        self.may_delete.set()
        self.deletions_fail = False
        self.loading = 0
        self.most_loading = 0
        self.ingresses = 0
        self.stopping = False
        self.routed: set[tuple[str, int]] | None = None
        self.splits: tuple[Split, ...] = ()
        self.store = FakeStore()
        self.replicas: dict[str, ReplicaCounts] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faked = ("deploy", "update", "describe", "delete", "listed", "running_replicas", "stops")
        for name in (*faked, "routed_ensembles", "routed_splits"):
            monkeypatch.setattr(applications, name, getattr(self, name))
        monkeypatch.setattr(manager, "configure_logging", lambda settings: None)
        monkeypatch.setattr(manager, "gpus_by_node", lambda: [])
        monkeypatch.setattr(manager, "store", self.store)
        monkeypatch.setattr(state_files, "OWN_S", 0.0)  # another manager of the same process
        monkeypatch.setattr(autoscaler, "replica_counts", lambda name, _: self.replicas.get(name))
        monkeypatch.setattr(autoscaler, "scale_deployment", self.scale)

    def scale(self, application: str, deployment: str, replicas: int) -> None:
        self.replicas[application] = self.replicas[application]._replace(target=replicas)

    async def deploy(self, spec: ModelSpec) -> Description:
        self.deployed.append(spec.application)
        parameters = replica_parameters(mc.ModelConfig.FromString(spec.config))
        count = parameters.started(spec.replicas, spec.percent)
        self.replicas[spec.application] = ReplicaCounts(count, count)
        self.loading += 1
        self.most_loading = max(self.most_loading, self.loading)
        try:
            if spec.name in self.gates:
                await self.gates[spec.name].wait()
        finally:
            self.loading -= 1
        failure = self.failures.get(f"{spec.name}:{spec.version}", "")
        if isinstance(failure, Exception):
            raise failure
        self.running[spec.application] = Description(spec, spec.config, error=failure)
        return self.running[spec.application]

    async def update(self, spec: ModelSpec, previous: ModelSpec) -> Description:
        assert self.running[spec.application].spec == previous
        failure = self.failures.get(f"{spec.name}:{spec.version}", "")
        if isinstance(failure, Exception):
            raise failure
        self.updated.append(spec)
        self.running[spec.application] = Description(spec, spec.config)
        return self.running[spec.application]

    async def describe(self, model: str, application: str) -> Description:
        if application in self.failures:
            failure = self.failures[application]
            assert isinstance(failure, Exception)
            raise failure
        return self.running[application]

    async def delete(self, application: str, kill: bool = False) -> bool:
        self.deleted.append(application)
        if kill:
            self.killed.append(application)
        await self.may_delete.wait()
        if not self.deletions_fail:
            self.running.pop(application, None)
        return not self.deletions_fail

    async def listed(self) -> list[ModelApplication]:
        found = []
        for application in self.running:
            parsed = parse_application(application)
            assert parsed is not None
            found.append(ModelApplication(*parsed, application, application not in self.down))
        return found

    async def stops(self) -> bool:
        return self.stopping

    async def running_replicas(self, application: str, deployment: str) -> int:
        return self.ingresses

    async def routed_ensembles(self, application: str, deployment: str) -> set[tuple[str, int]] | None:
        return self.routed

    async def routed_splits(self, application: str, deployment: str) -> tuple[Split, ...]:
        return self.splits


class FakeIngress:
    """Watches as an ingress does; applies a table when `let_apply` is set."""

    def __init__(self, repository_manager: RepositoryManager) -> None:
        self.manager = repository_manager
        self.table = RoutingTable()
        self.let_apply = asyncio.Event()
        self.let_apply.set()
        self.received: list[RoutingTable] = []
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            if answer := await self.manager.watch("ingress", self.table.number):
                table = decode_table(answer)
                self.received.append(table)
                await self.manager.receive("ingress", table.number)
                await self.let_apply.wait()
                self.table = table


class Bench:
    """Managers over one repository and one Serve."""

    def __init__(self, repository: Path, serve: FakeServe) -> None:
        self.repository = repository
        self.serve = serve
        self.managers: list[RepositoryManager] = []
        self.tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, config: str = CONFIG, versions: tuple[int, ...] = (1,)) -> Path:
        return add(self.repository, name, config, versions)

    def begin(self, key: bytes = KEY, **settings: Any) -> RepositoryManager:
        """Make a manager, which starts at its first call."""
        kept = str(self.repository.parent / "state")
        arguments = {"model_repository": [str(self.repository)], "state_directory": kept, **settings}
        self.managers.append(RepositoryManager(from_args(arguments), key, ("nereid", "ingress")))
        return self.managers[-1]

    async def start(self, **settings: Any) -> RepositoryManager:
        """Make a manager and wait until it has started."""
        made = self.begin(**settings)
        await made.check_health()
        await started(made)
        await made.check_health()
        return made

    async def start_explicit(self, *names: str, **settings: Any) -> RepositoryManager:
        return await self.start(model_control_mode="explicit", load_model=list(names), **settings)

    async def stop(self) -> None:
        """End what the managers and ingresses do, and what they begin when they are cancelled."""
        while running := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
        for made in self.managers:
            if (timer := made._publisher._resting) is not None:
                timer.cancel()  # it would keep a table in a task of a loop that is closed meanwhile

    def ingress(self, of: RepositoryManager) -> FakeIngress:
        made = FakeIngress(of)
        self.tasks.append(made.task)
        return made


async def started(made: RepositoryManager) -> None:
    assert made._start is not None
    await asyncio.wait_for(asyncio.shield(made._start), 60)


async def states(made: RepositoryManager) -> list[tuple[str, str, str]]:
    return [(name, version, state) for name, version, state, _ in await made.index()]


async def reason(made: RepositoryManager, name: str) -> str:
    (found,) = [reason for row, _, _, reason in await made.index() if row == name]
    return found


async def load(made: RepositoryManager, name: str, config: str | None = None) -> None:
    await asyncio.wait_for(made.load(LoadRequest(name, config)), 60)


async def load_error(made: RepositoryManager, name: str) -> InferError:
    with pytest.raises(InferError) as caught:
        await load(made, name)
    return caught.value
