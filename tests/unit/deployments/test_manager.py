"""The repository manager over a Serve that is made up: its state, its tables, what it deploys and deletes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError, internal
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from app.settings import from_args
from deployments.repository import applications, cluster, manager
from deployments.repository.applications import Found, parse_application
from deployments.repository.manager import RepositoryManager
from deployments.repository.report import status_table
from deployments.spec import Description, ModelSpec
from tests.unit.deployments.test_catalog import CONFIG, add

KEY = bytes(32)


class FakeServe:
    """Stands for the functions of `deployments.repository.applications`."""

    def __init__(self) -> None:
        self.running: dict[str, Description] = {}
        self.down: set[str] = set()
        self.failures: dict[str, Exception | str] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.deployed: list[str] = []
        self.updated: list[ModelSpec] = []
        self.deleted: list[str] = []
        self.loading = 0
        self.most_loading = 0
        self.ingresses = 0
        self.routed: set[tuple[str, int]] | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faked = ("deploy", "update", "describe", "delete", "listed", "running_replicas", "routed_ensembles")
        for name in faked:
            monkeypatch.setattr(applications, name, getattr(self, name))
        monkeypatch.setattr(manager, "configure_logging", lambda settings: None)
        monkeypatch.setattr(cluster, "ray", SimpleNamespace(nodes=lambda: []))

    async def deploy(self, spec: ModelSpec) -> Description:
        self.deployed.append(spec.application)
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

    async def delete(self, application: str) -> None:
        self.deleted.append(application)
        self.running.pop(application, None)

    async def listed(self) -> list[Found]:
        found = []
        for application in self.running:
            parsed = parse_application(application)
            assert parsed is not None
            found.append(Found(*parsed, application, application not in self.down))
        return found

    async def running_replicas(self, application: str, deployment: str) -> int:
        return self.ingresses

    async def routed_ensembles(self, application: str, deployment: str) -> set[tuple[str, int]] | None:
        return self.routed


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
            answer = await self.manager.watch("ingress", self.table.number)
            table = msgspec.msgpack.decode(answer, type=RoutingTable)
            if table.number != self.table.number:
                self.received.append(table)
                await self.manager.receive("ingress", table.number)
                await self.let_apply.wait()
                self.table = table


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


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
        """A manager whose start-up is under way once somebody asks it something."""
        arguments = {"model_repository": [str(self.repository)], **settings}
        self.managers.append(RepositoryManager(from_args(arguments), key, ("nereid", "ingress")))
        return self.managers[-1]

    async def start(self, **settings: Any) -> RepositoryManager:
        """A manager that has started up."""
        made = self.begin(**settings)
        await made.check_health()
        await started(made)
        await made.check_health()
        return made

    async def start_explicit(self, *names: str, **settings: Any) -> RepositoryManager:
        return await self.start(model_control_mode="explicit", load_model=list(names), **settings)

    def ingress(self, of: RepositoryManager) -> FakeIngress:
        made = FakeIngress(of)
        self.tasks.append(made.task)
        return made


async def started(made: RepositoryManager) -> None:
    assert made._start is not None
    await asyncio.wait_for(asyncio.shield(made._start), 10)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
async def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    repository.mkdir()
    serve = FakeServe()
    serve.install(monkeypatch)
    monkeypatch.setattr(manager, "private_root", lambda: repository.parent / "private")
    made = Bench(repository, serve)
    yield made
    for task in [
        *made.tasks,
        *(m._start for m in made.managers if m._start),
        *(task for m in made.managers for task in m._background),
    ]:
        task.cancel()


async def states(made: RepositoryManager) -> list[tuple[str, str, str]]:
    return [(name, version, state) for name, version, state, _ in await made.index()]


async def reason(made: RepositoryManager, name: str) -> str:
    (found,) = [reason for row, _, _, reason in await made.index() if row == name]
    return found


def description(name: str, application: str, key: bytes = KEY, error: str = "") -> Description:
    parsed = parse_application(application)
    assert parsed is not None
    config = mc.ModelConfig(name=name, backend="identity").SerializeToString()
    spec = ModelSpec(name, parsed[1], "", config, application, "", key, "")
    return Description(spec, config, error=error)


async def load(made: RepositoryManager, name: str, config: str | None = None) -> None:
    await asyncio.wait_for(made.load(name, config, {}), 10)


async def load_error(made: RepositoryManager, name: str) -> InferError:
    with pytest.raises(InferError) as caught:
        await load(made, name)
    return caught.value


async def test_start_loads_everything_side_by_side(bench: Bench) -> None:
    names = [f"m{number}" for number in range(6)]
    gate = asyncio.Event()
    for name in names:
        bench.add(name)
        bench.serve.gates[name] = gate
    made = bench.begin(model_load_thread_count=4)
    await made.check_health()
    await until(lambda: bench.serve.loading == 4)
    await asyncio.sleep(0.01)
    table = msgspec.msgpack.decode(await made.status(), type=RoutingTable)
    assert not table.initialised
    gate.set()
    await started(made)
    assert bench.serve.most_loading == 4
    assert await states(made) == [(name, "1", "READY") for name in names]
    assert made._board.table.initialised and made._board.table.all_ready
    assert sorted(bench.serve.deployed) == [f"{name}:1" for name in names]


async def test_failing_model_leaves_the_others(bench: Bench) -> None:
    for name in ("dead", "fails", "good", "odd", "raises"):
        bench.add(name)
    bench.add("unreadable", "no configuration")
    bench.serve.failures.update(
        {
            "dead:1": RuntimeError("the actor died"),
            "fails:1": "Internal: no such file",
            "raises:1": internal("the replica could not start"),
        }
    )
    made = await bench.start()
    assert [row for row in await states(made) if row[2] == "READY"] == [
        ("good", "1", "READY"),
        ("odd", "1", "READY"),
    ]
    assert await reason(made, "fails") == "Internal: no such file"
    assert await reason(made, "dead") == "Internal: RuntimeError: the actor died"
    assert await reason(made, "raises") == "Internal: the replica could not start"
    assert (await reason(made, "unreadable")).startswith(
        "Internal: failed to load 'unreadable', failed to poll"
    )
    table = made._board.table
    assert table.initialised and not table.all_ready
    await until(lambda: sorted(bench.serve.deleted) == ["dead:1", "fails:1", "raises:1"])


async def test_start_survives_what_nobody_foresaw(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.add("bad")
    bench.add("good")
    made = bench.begin()
    candidate = made._catalog.candidate

    def read(name: str, override: str | None, bundle: Any) -> Any:
        if name == "bad":
            raise PermissionError(13, "Permission denied")
        return candidate(name, override)

    monkeypatch.setattr(made._catalog, "candidate", read)
    await made.check_health()
    await started(made)
    assert await states(made) == [("bad", "", "UNAVAILABLE"), ("good", "1", "READY")]
    assert "Permission denied" in await reason(made, "bad")


async def test_load_that_takes_too_long(bench: Bench) -> None:
    bench.add("slow")
    bench.add("good")
    bench.serve.gates["slow"] = asyncio.Event()
    made = await bench.start(model_load_timeout_secs=1)
    assert await states(made) == [("good", "1", "READY"), ("slow", "1", "UNAVAILABLE")]
    assert await reason(made, "slow") == "Internal: not loaded within 1 s (model_load_timeout_secs)"
    await until(lambda: bench.serve.deleted == ["slow:1"])


async def test_load_is_tried_again(bench: Bench) -> None:
    bench.add("m")
    bench.serve.failures["m:1"] = "Internal: no such file"
    made = await bench.start(model_load_retry_count=2)
    assert await states(made) == [("m", "1", "UNAVAILABLE")]
    assert bench.serve.deployed == ["m:1", "m:1@2", "m:1@3"]
    await until(lambda: bench.serve.deleted == bench.serve.deployed)


async def test_only_explicit_mode_takes_loads(bench: Bench) -> None:
    made = await bench.start()
    for work in (made.load("m", None, {}), made.unload("m")):
        with pytest.raises(InferError) as caught:
            await work
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert caught.value.message == "explicit model load / unload is not allowed if polling is enabled"


async def test_explicit_load_unload_and_load_again(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit()
    assert await states(made) == [("m", "", "")]
    await load(made, "m")
    assert await states(made) == [("m", "1", "READY")]
    await made.unload("m")
    assert await made.index() == [("m", "1", "UNAVAILABLE", "unloaded")]
    assert bench.serve.deleted == ["m:1"]
    await load(made, "m")
    assert await states(made) == [("m", "1", "READY")]
    assert bench.serve.deployed == ["m:1", "m:1@2"]
    assert list(made._loaded) == ["m:1@2"]


async def test_second_unload_does_nothing(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    await made.unload("m")
    number = made._board.table.number
    await made.unload("m")
    await made.unload("nowhere")
    assert made._board.table.number == number
    assert bench.serve.deleted == ["m:1"]


async def test_load_waits_until_the_ingress_routes_by_it(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit()
    ingress = bench.ingress(made)
    await until(lambda: ingress.table.number == made._board.table.number)
    ingress.let_apply.clear()
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bool(ingress.received) and "m:1" in ingress.received[-1].applications)
    await asyncio.sleep(0.05)
    assert not loading.done()
    ingress.let_apply.set()
    await loading
    assert "m:1" in ingress.table.applications


async def test_unload_passes_through_unloading(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    ingress = bench.ingress(made)
    await until(lambda: "m:1" in ingress.table.applications)
    ingress.let_apply.clear()
    unloading = asyncio.create_task(made.unload("m"))
    await until(lambda: ingress.received[-1].entries[0].state is ModelState.UNLOADING)
    await asyncio.sleep(0.05)
    assert bench.serve.deleted == [], "deleted while an ingress still routes to it"
    assert await states(made) == [("m", "1", "UNLOADING")]
    ingress.let_apply.set()
    await unloading
    assert bench.serve.deleted == ["m:1"]
    assert ingress.table.entries[0].state is ModelState.UNAVAILABLE
    assert ingress.table.all_ready, "a deliberate unload does not make the server unready"


async def test_load_of_what_is_unchanged_deploys_nothing(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    await load(made, "m")
    assert bench.serve.deployed == ["m:1"]


async def test_reload_starts_beside_and_then_replaces(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8"))
    gate = bench.serve.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.deployed == ["m:1", "m:1@2"])
    assert await states(made) == [("m", "1", "READY")]
    assert list(made._board.table.applications) == ["m:1"]
    gate.set()
    await loading
    assert list(made._board.table.applications) == ["m:1@2"]
    await until(lambda: bench.serve.deleted == ["m:1"])
    assert list(made._loaded) == ["m:1@2"]


async def test_failed_reload_keeps_what_was_served(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8"))
    bench.serve.failures["m:1"] = "Internal: no such file"
    error = await load_error(made, "m")
    assert error.message == "load failed for model 'm': version 1: Internal: no such file;\n"
    assert await states(made) == [("m", "1", "READY")]
    assert list(made._board.table.applications) == ["m:1"]
    await until(lambda: bench.serve.deleted == ["m:1@2"])


async def test_failed_reload_of_one_version_ends_when_the_others_are_done(bench: Bench) -> None:
    """Otherwise the next load of the model would start while versions of this one still come up."""
    policy = "version_policy { all {} }"
    bench.add("m", CONFIG + policy)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8") + policy, (1, 2))
    bench.serve.failures["m:1"] = "Internal: no such file"
    gates = {1: asyncio.Event(), 2: asyncio.Event()}
    deploy = made._deployer.deploy

    async def gated(candidate: Any, version: int) -> Description:
        await gates[version].wait()
        return await deploy(candidate, version)

    made._deployer.deploy = gated  # type: ignore[method-assign]
    loading = asyncio.create_task(load_error(made, "m"))
    await asyncio.sleep(0)
    gates[1].set()
    await until(lambda: bench.serve.deleted == ["m:1@2"])
    await asyncio.sleep(0.01)
    assert not loading.done()
    gates[2].set()
    assert "version 1: Internal: no such file" in (await loading).message
    assert await states(made) == [("m", "1", "READY"), ("m", "2", "READY")]


async def test_failing_new_version_leaves_the_old_one_in_service(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG, (2,))
    bench.serve.failures["m:2"] = "Internal: no such file"
    error = await load_error(made, "m")
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == (
        "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: no such file;\n"
    )
    assert await states(made) == [("m", "1", "READY"), ("m", "2", "UNAVAILABLE")]
    bench.serve.failures.clear()
    await load(made, "m")
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]
    assert "m:1" in bench.serve.deleted


async def test_version_policy_moves_on(bench: Bench) -> None:
    bench.add("m", CONFIG + "version_policy { all {} }", (1, 2))
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG)
    await load(made, "m")
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]
    assert (sorted(bench.serve.deployed), bench.serve.deleted) == (["m:1", "m:2"], ["m:1"])


async def test_model_that_could_not_be_read_leaves_no_row_behind(bench: Bench) -> None:
    bench.add("m", "no configuration")
    made = await bench.start_explicit("m")
    assert await states(made) == [("m", "", "UNAVAILABLE")]
    assert made._board.table.entries[0].version == NO_VERSION
    bench.add("m")
    await load(made, "m")
    assert await states(made) == [("m", "1", "READY")]
    await made.unload("m")
    assert await states(made) == [("m", "1", "UNAVAILABLE")]


async def test_names_of_clients_leave_nothing_behind(bench: Bench) -> None:
    made = await bench.start_explicit()
    for number in range(50):
        await load_error(made, f"nowhere{number}")
        await made.unload(f"nowhere{number}")
    await load_error(made, "../" * 1000)
    assert (len(made._turns), made._entries, made._deployer.generations, made._loaded) == (0, {}, {}, {})


TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
THREE = TWO.replace("2", "3")


def counts(made: RepositoryManager, name: str = "m") -> list[int]:
    """Of the first instance group of each version, as clients see it."""
    entries = made._versions(name)
    return [mc.ModelConfig.FromString(entry.config).instance_group[0].count for entry in entries]


async def test_a_change_of_instances_deploys_nothing(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + THREE)
    await load(made, "m")
    assert (bench.serve.deployed, bench.serve.deleted) == (["m:1"], [])
    assert [(spec.application, spec.revision) for spec in bench.serve.updated] == [("m:1", 1)]
    assert counts(made) == [3]
    await load(made, "m")
    assert len(bench.serve.updated) == 1, "nothing was changed any more"
    bench.add("m", CONFIG + TWO)
    await load(made, "m")
    assert [spec.revision for spec in bench.serve.updated] == [1, 2]
    assert counts(made) == [2]


async def test_a_change_of_the_configuration_that_clients_see(bench: Bench) -> None:
    """They get it completed from the model file, change the count and send it back."""
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    (entry,) = made._versions("m")
    complete = mc.ModelConfig.FromString(entry.config)
    complete.output.add(name="FOUND", data_type=mc.TYPE_FP32, dims=[1])
    made._set(msgspec.structs.replace(entry, config=complete.SerializeToString()))
    complete.instance_group[0].count = 5
    await made.load("m", json_format.MessageToJson(complete, preserving_proto_field_name=True), {})
    assert bench.serve.deployed == ["m:1"] and counts(made) == [5]


async def test_instances_and_versions_change_together(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + THREE + "version_policy { all {} }", (1, 2))
    await load(made, "m")
    assert bench.serve.deployed == ["m:1", "m:2"]
    assert [spec.application for spec in bench.serve.updated] == ["m:1"]
    assert counts(made) == [3, 3]


async def test_a_change_of_more_than_instances_reloads(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG.replace("4", "8") + THREE)
    await load(made, "m")
    assert bench.serve.deployed == ["m:1", "m:1@2"] and not bench.serve.updated


async def test_a_refused_change_of_instances_leaves_what_serves(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.serve.failures["m:1"] = internal("no memory left")
    bench.add("m", CONFIG + THREE)
    error = await load_error(made, "m")
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == "load failed for model 'm': version 1: Internal: no memory left;\n"
    assert await states(made) == [("m", "1", "READY")]
    assert counts(made) == [2] and not bench.serve.deleted
    bench.serve.failures.clear()
    await load(made, "m")
    assert counts(made) == [3] and bench.serve.deployed == ["m:1"]


async def test_a_restarted_manager_knows_of_changed_instances(bench: Bench) -> None:
    bench.add("m", CONFIG + TWO)
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + THREE)
    await load(made, "m")
    again = await bench.start()
    assert counts(again) == [3]
    assert bench.serve.deployed == ["m:1"] and len(bench.serve.updated) == 1


async def test_operations_on_one_model_take_turns(bench: Bench) -> None:
    bench.add("m")
    bench.add("n")
    made = await bench.start_explicit()
    gate = bench.serve.gates["m"] = asyncio.Event()
    first = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.deployed == ["m:1"])
    second = asyncio.create_task(load(made, "m"))
    await until(lambda: made._turns.users("m") == 2)
    third = asyncio.create_task(made.unload("m"))
    await load(made, "n")
    assert not (second.done() or third.done())
    gate.set()
    await asyncio.gather(first, second, third)
    assert bench.serve.deployed == ["m:1", "n:1"]
    assert await reason(made, "m") == "unloaded"
    assert len(made._turns) == 0


async def test_cancelled_load_gives_its_turn_back(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit()
    bench.serve.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.loading == 1)
    loading.cancel()
    await asyncio.wait([loading])
    assert len(made._turns) == 0


async def test_config_override_and_the_way_back(bench: Bench) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    await load(made, "m", '{"backend": "identity", "max_batch_size": 2}')
    (entry,) = made._board.table.applications.values()
    assert (entry.application, entry.model_config.max_batch_size) == ("m:1@2", 2)
    await load(made, "m")
    (entry,) = made._board.table.applications.values()
    assert (entry.application, entry.model_config.max_batch_size) == ("m:1@3", 4)


async def test_restarted_manager_takes_what_runs_as_its_state(bench: Bench) -> None:
    bench.add("m")
    bench.add("n")
    first = await bench.start_explicit("m")
    number = first._board.table.number
    await asyncio.sleep(0.002)
    second = await bench.start_explicit("m", "n")
    assert bench.serve.deployed == ["m:1", "n:1"], "what runs unchanged is not loaded again"
    assert await states(second) == [("m", "1", "READY"), ("n", "1", "READY")]
    assert second._board.table.number > number


async def test_restarted_manager_is_ready_before_it_looks_at_the_disk(bench: Bench) -> None:
    bench.serve.running["m:1"] = description("m", "m:1")
    bench.add("slow")
    bench.serve.gates["slow"] = asyncio.Event()
    made = bench.begin()
    table = msgspec.msgpack.decode(await made.watch("ingress", 0), type=RoutingTable)
    assert table.initialised and list(table.applications) == ["m:1"]


async def test_recovery_picks_the_newest_generation(bench: Bench) -> None:
    for application in ("m:1@9", "m:1@10", "m:1", "m:2@3"):
        bench.serve.running[application] = description("m", application)
    made = await bench.start_explicit()
    assert sorted(made._board.table.applications) == ["m:1@10", "m:2@3"]
    await until(lambda: sorted(bench.serve.deleted) == ["m:1", "m:1@9"])
    bench.add("m")
    await load(made, "m")
    assert bench.serve.deployed == ["m:1@11"], "a name that was in use is not used again"


async def test_recovery_passes_over_a_generation_that_does_not_serve(bench: Bench) -> None:
    """The manager died while a reload was about to fail: the version before it is the one in service."""
    bench.serve.running["m:1"] = description("m", "m:1")
    bench.serve.running["m:1@2"] = description("m", "m:1@2", error="Internal: no such file")
    bench.serve.running["m:1@3"] = description("m", "m:1@3")
    bench.serve.failures["m:1@3"] = RuntimeError("the actor died")
    bench.serve.running["m:1@4"] = description("m", "m:1@4")
    bench.serve.down.add("m:1@4")
    made = await bench.start_explicit()
    assert list(made._board.table.applications) == ["m:1"]
    await until(lambda: sorted(bench.serve.deleted) == ["m:1@2", "m:1@3", "m:1@4"])


async def test_models_of_another_deployment_of_the_server_are_loaded_anew(bench: Bench) -> None:
    """Their channels want the key of before; no ingress of now can reach them."""
    bench.add("m")
    await bench.start_explicit("m")
    made = await bench.start_explicit(key=b"k" * 32)
    assert list(made._board.table.applications) == ["m:1@2"]
    assert bench.serve.running["m:1@2"].spec.key == b"k" * 32
    await until(lambda: bench.serve.deleted == ["m:1"])


async def test_start_that_fails_is_told_to_serve(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listed() -> list[Found]:
        raise RuntimeError("no controller")

    monkeypatch.setattr(applications, "listed", listed)
    made = bench.begin()
    await made.check_health()
    await until(lambda: made._start is not None and made._start.done())
    with pytest.raises(RuntimeError, match="the repository manager could not start: no controller"):
        await made.check_health()


async def test_loads_go_on_without_serves_controller(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")

    async def running_replicas(application: str, deployment: str) -> int:
        raise RuntimeError("no controller")

    monkeypatch.setattr(applications, "running_replicas", running_replicas)
    await made.unload("m")
    assert await reason(made, "m") == "unloaded"


def test_table_of_the_start() -> None:
    table = RoutingTable(
        1,
        True,
        (
            VersionEntry("simple", 10, ModelState.READY),
            VersionEntry("simple", 2, ModelState.UNAVAILABLE, "Internal: no such file"),
            VersionEntry("bad", NO_VERSION, ModelState.UNAVAILABLE, "Internal: unreadable"),
        ),
    )
    assert status_table(table).splitlines() == [
        "+--------+---------+-------------------------------------+",
        "| Model  | Version | Status                              |",
        "+--------+---------+-------------------------------------+",
        "| bad    |         | UNAVAILABLE: Internal: unreadable   |",
        "| simple | 2       | UNAVAILABLE: Internal: no such file |",
        "| simple | 10      | READY                               |",
        "+--------+---------+-------------------------------------+",
    ]


def test_table_of_the_start_without_models() -> None:
    assert status_table(RoutingTable()).splitlines()[1] == "| Model | Version | Status |"


OVERRIDE = '{"backend": "identity", "max_batch_size": 2}'


async def load_files(made: RepositoryManager, name: str, config: str | None, *files: str) -> None:
    await asyncio.wait_for(made.load(name, config, dict.fromkeys(files, b"x")), 10)


async def test_files_of_a_request_and_the_way_back(bench: Bench) -> None:
    bench.add("m", versions=(3,))
    made = await bench.start_explicit("m")
    await load_files(made, "m", OVERRIDE, "1/model", "2/model")
    assert await states(made) == [("m", "2", "READY"), ("m", "3", "UNAVAILABLE")]
    spec = bench.serve.running["m:2"].spec
    directory = Path(spec.directory)
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2"], "nothing of the repository's copy"
    assert directory.stat().st_mode & 0o077 == 0
    await load_files(made, "m", OVERRIDE, "1/model", "2/model")
    assert bench.serve.deployed == ["m:3", "m:2"], "the same request twice is no change"
    await load(made, "m")
    assert await states(made) == [("m", "2", "UNAVAILABLE"), ("m", "3", "READY")]
    assert not directory.exists()


async def test_files_make_a_model_no_repository_has(bench: Bench) -> None:
    made = await bench.start_explicit()
    await load_files(made, "fresh", OVERRIDE, "1/model")
    assert await states(made) == [("fresh", "1", "READY")]
    directory = Path(bench.serve.running["fresh:1"].spec.directory)
    await made.unload("fresh")
    assert not directory.exists()


@pytest.mark.parametrize(
    ("config", "file", "text"),
    [
        (None, "1/model", "Load parameter 'config' must be specified for model file override"),
        (OVERRIDE, "../../etc/x", "must stay within model directory."),
        ("{", "1/model", "Invalid config override: "),
        (OVERRIDE, "model", "at least one version must be available under the version policy of model 'm'"),
    ],
)
async def test_files_that_make_no_model(bench: Bench, config: str | None, file: str, text: str) -> None:
    bench.add("m")
    made = await bench.start_explicit("m")
    with pytest.raises(InferError) as caught:
        await load_files(made, "m", config, file)
    assert caught.value.message.startswith("failed to load 'm', failed to poll from model repository: ")
    assert text in caught.value.message
    assert await states(made) == [("m", "1", "READY")]
    assert bench.serve.deployed == ["m:1"]


async def test_files_survive_a_restart_of_the_manager(bench: Bench) -> None:
    bench.add("m")
    first = await bench.start_explicit("m")
    await load_files(first, "m", OVERRIDE, "1/model")
    directory = Path(bench.serve.running["m:1@2"].spec.directory)
    second = await bench.start_explicit("m")
    assert list(second._board.table.applications) == ["m:1@2"]
    first._overrides.retain([])
    assert directory.exists(), "the second holds it"
    await second.unload("m")
    assert not directory.exists()


async def test_new_version_policy_is_told_without_a_load(bench: Bench) -> None:
    bench.add("m", CONFIG + "version_policy { all {} }", (1, 2))
    made = await bench.start_explicit("m")
    bench.add("m", CONFIG + "version_policy { specific { versions: [ 2 ] } }")
    await load(made, "m")
    assert sorted(bench.serve.deployed) == ["m:1", "m:2"]
    (entry,) = made._board.table.applications.values()
    assert list(entry.model_config.version_policy.specific.versions) == [2]


class Polled:
    """A manager in POLL mode whose polls happen when the test says so."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = bench
        self._tick = asyncio.Semaphore(0)
        self._idle = asyncio.Event()
        monkeypatch.setattr(manager, "poll_pause", self._pause)

    async def start(self) -> RepositoryManager:
        made = await self.bench.start(model_control_mode="poll")
        await asyncio.wait_for(self._idle.wait(), 10)
        return made

    async def poll(self, times: int = 1) -> None:
        for _ in range(times):
            self._idle.clear()
            self._tick.release()
            await asyncio.wait_for(self._idle.wait(), 10)

    async def _pause(self, seconds: float) -> None:
        self._idle.set()
        await self._tick.acquire()


@pytest.fixture
def polled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Polled:
    return Polled(bench, monkeypatch)


async def test_polling_follows_what_is_added_changed_and_removed(bench: Bench, polled: Polled) -> None:
    bench.add("same")
    bench.add("changed")
    removed = bench.add("removed")
    made = await polled.start()
    bench.add("added")
    bench.add("changed", CONFIG.replace("4", "8"))
    removed.rename(bench.repository.parent / "elsewhere")
    await polled.poll()
    assert sorted(bench.serve.deployed) == ["changed:1", "removed:1", "same:1"], "not at rest yet"
    await polled.poll()
    assert sorted(bench.serve.deployed[3:]) == ["added:1", "changed:1@2"]
    assert [*await states(made)] == [
        ("added", "1", "READY"),
        ("changed", "1", "READY"),
        ("removed", "1", "UNAVAILABLE"),
        ("same", "1", "READY"),
    ]
    assert await reason(made, "removed") == "unloaded"
    await polled.poll(2)
    assert len(bench.serve.deployed) == 5


async def test_polling_follows_versions(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    made = await polled.start()
    bench.add("m", versions=(2,))
    await polled.poll(2)
    assert await states(made) == [("m", "1", "UNAVAILABLE"), ("m", "2", "READY")]
    assert bench.serve.deployed == ["m:1", "m:2"]
    (bench.repository / "m" / "2").rmdir()
    await polled.poll(2)
    assert await states(made) == [("m", "1", "READY"), ("m", "2", "UNAVAILABLE")]


async def test_polling_keeps_what_serves_when_a_change_fails(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    made = await polled.start()
    bench.add("m", "no configuration")
    await polled.poll(2)
    assert await states(made) == [("m", "1", "READY")]
    assert "failed to poll from model repository" in await reason(made, "m")
    bench.add("m")
    await polled.poll(2)
    assert await made.index() == [("m", "1", "READY", "")]
    assert bench.serve.deployed == ["m:1"]


async def test_polling_goes_on_when_the_repository_is_away(
    bench: Bench, polled: Polled, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add("m")
    made = await polled.start()
    bench.repository.rename(bench.repository.parent / "away")
    await polled.poll(3)
    assert "failed to poll the model repositories" in caplog.text
    (bench.repository.parent / "away").rename(bench.repository)
    await polled.poll(2)
    assert await states(made) == [("m", "1", "READY")]


async def test_polling_unloads_what_went_while_the_manager_was_away(bench: Bench, polled: Polled) -> None:
    bench.add("m")
    await bench.start()
    (bench.repository / "m").rename(bench.repository.parent / "elsewhere")
    made = await polled.start()
    await polled.poll(2)
    assert await reason(made, "m") == "unloaded"


async def test_model_in_two_repositories_says_so(bench: Bench, tmp_path: Path) -> None:
    bench.add("m")
    add(tmp_path / "more", "m")
    made = await bench.start(model_repository=[str(bench.repository), str(tmp_path / "more")])
    assert await made.index() == [("m", "", "UNAVAILABLE", "model appears in two or more repositories")]
    assert bench.serve.deployed == []


class TestNamespaces:
    """The same name in two repositories, with `--model-namespacing`."""

    @pytest.fixture
    def two(self, bench: Bench, tmp_path: Path) -> dict[str, Any]:
        bench.add("m")
        bench.add("only")
        add(tmp_path / "more", "m")
        repositories = [str(bench.repository), str(tmp_path / "more")]
        return {"model_repository": repositories, "model_namespacing": True}

    async def test_both_are_served(self, bench: Bench, two: dict[str, Any]) -> None:
        made = await bench.start(**two)
        one, other = two["model_repository"]
        assert await states(made) == [
            (f"{one}::m", "1", "READY"),
            (f"{one}::only", "1", "READY"),
            (f"{other}::m", "1", "READY"),
        ]
        assert len(set(bench.serve.deployed)) == 3
        directories = {running.spec.directory for running in bench.serve.running.values()}
        assert directories == {f"{one}/m", f"{one}/only", f"{other}/m"}

    async def test_load_and_unload_mean_every_namespace(self, bench: Bench, two: dict[str, Any]) -> None:
        made = await bench.start_explicit(**two)
        await load(made, "m")
        assert [state for _, _, state in await states(made)] == ["READY", "", "READY"]
        await made.unload("m")
        assert [state for _, _, state in await states(made)] == ["UNAVAILABLE", "", "UNAVAILABLE"]
        error = await load_error(made, "absent")
        assert error.message == "failed to load 'absent', failed to poll from model repository"

    async def test_loading_at_the_start_means_every_namespace(
        self, bench: Bench, two: dict[str, Any]
    ) -> None:
        made = await bench.start_explicit("m", **two)
        assert [state for _, _, state in await states(made)] == ["READY", "", "READY"]

    async def test_a_restarted_manager_knows_them(self, bench: Bench, two: dict[str, Any]) -> None:
        first = await bench.start(**two)
        again = await bench.start(**two)
        assert await states(again) == await states(first)
        assert (len(bench.serve.deployed), bench.serve.deleted) == (3, [])


async def test_failed_update_leaves_retired_versions_alone(bench: Bench, polled: Polled) -> None:
    """They would make the server unready."""
    bench.add("m")
    made = await polled.start()
    bench.add("m", versions=(2,))
    await polled.poll(2)
    bench.add("m", "no configuration")
    await polled.poll(2)
    rows = {version: (state, reason) for _, version, state, reason in await made.index()}
    assert rows["1"] == ("UNAVAILABLE", "unloaded")
    assert rows["2"][0] == "READY" and rows["2"][1].startswith("update failed: ")
    assert made._board.table.all_ready
