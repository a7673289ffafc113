"""The service of an ingress: what it tells of models, and how one request becomes one answer."""

import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.inference import no_sink
from app.core.rollout.status import RolloutChange
from app.core.server_metadata import EXTENSIONS
from app.core.tensors import InferRequest
from app.dispatch.router import Router
from app.ingress.service.routed import RoutedInferenceService
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from app.settings.settings import GeneralSettings, IngressSettings, RepositorySettings, ServerSettings
from tests.unit.app.routing_fakes import (
    SETTINGS,
    FakeChannel,
    FakePool,
    FakeRepository,
    FakeRouter,
    counters,
    entry,
)

LENIENT = ServerSettings(repository=RepositorySettings(strict_readiness=False))
UNLOADED = entry("gone", state=ModelState.UNAVAILABLE, reason="unloaded")
BROKEN = VersionEntry("broken", NO_VERSION, ModelState.UNAVAILABLE, "Internal: unreadable")
LOADING = entry("m", 3, ModelState.LOADING)


def service_of(
    router: FakeRouter, settings: ServerSettings = SETTINGS, repository: FakeRepository | None = None
) -> RoutedInferenceService:
    return RoutedInferenceService(settings, cast(Router, router), repository or FakeRepository())


def of(*entries: VersionEntry) -> RoutedInferenceService:
    return service_of(FakeRouter(*entries))


def refusal(call: Callable[[], Any]) -> tuple[ErrorCode, str]:
    with pytest.raises(InferError) as caught:
        call()
    return caught.value.code, caught.value.message


READINESS = [
    ([entry("m"), entry("n")], True, True),
    ([], True, True),
    ([entry("m"), UNLOADED], True, True),
    ([entry("m"), LOADING], False, True),
    ([entry("m"), BROKEN], False, True),
]


@pytest.mark.parametrize(("entries", "strict", "lenient"), READINESS)
def test_ready(entries: list[VersionEntry], strict: bool, lenient: bool) -> None:
    assert of(*entries).ready() is strict
    assert service_of(FakeRouter(*entries), LENIENT).ready() is lenient


def test_not_ready_before_the_start_up_is_over() -> None:
    for settings in (SETTINGS, LENIENT):
        service = service_of(FakeRouter(entry("m"), initialised=False), settings)
        assert service.live() and not service.ready()


@pytest.mark.parametrize(("exit_on_error", "expected"), [(True, False), (False, True)])
def test_not_ready_when_a_failed_start_ends_the_program(exit_on_error: bool, expected: bool) -> None:
    router = FakeRouter()
    router.table = RoutingTable(1, initialised=True, all_loaded=False)
    settings = ServerSettings(repository=RepositorySettings(exit_on_error=exit_on_error))
    assert service_of(router, settings).ready() is expected


async def test_neither_live_nor_ready_after_a_failed_start() -> None:
    router = FakeRouter(initialised=False)
    router.table = RoutingTable(1, failed=True)
    service = service_of(router)
    assert not service.live() and not service.ready()
    assert service.server_metadata().name == "triton"
    for call in (lambda: service.model_ready("m"), lambda: service.resolve("m")):
        assert refusal(call) == (ErrorCode.UNAVAILABLE, "Server not ready")
    with pytest.raises(InferError, match="Server not ready"):
        await service.statistics()


def test_unknown_model_is_not_ready_yet_while_the_server_starts() -> None:
    assert not service_of(FakeRouter(initialised=False)).model_ready("m")


def test_not_ready_while_a_model_has_no_replica() -> None:
    router = FakeRouter(entry("m"), entry("n"))
    router.out.add("n:1")
    service = service_of(router)
    assert (service.ready(), service.model_ready("m"), service.model_ready("n")) == (False, True, False)
    assert service_of(router, LENIENT).ready()


def test_begin_exit_reports_not_ready() -> None:
    service = of(entry("m"))
    assert (service.live(), service.exiting()) == (True, False)
    service.begin_exit()
    assert (service.live(), service.exiting()) == (False, True)
    assert not service.ready() and not service.model_ready("m")
    assert service.resolve("m").name == "m", "requests are still served"


def test_fault_of_the_cluster_makes_the_server_not_ready_but_no_model() -> None:
    service = of(entry("m"))
    service.cluster_fault = "Ray's raylet has ended"
    assert not service.ready()
    assert service.live() and service.model_ready("m") and service.resolve("m").name == "m"
    service.cluster_fault = ""
    assert service.ready()


def test_model_ready() -> None:
    service = of(entry("m"), entry("m", 2), LOADING, UNLOADED, BROKEN)
    for name, version, expected in (
        ("m", "", True),
        ("m", "2", True),
        ("m", "3", False),
        ("gone", "", False),
        ("gone", "1", False),
        ("broken", "", False),
    ):
        assert service.model_ready(name, version) is expected, (name, version)
    assert refusal(lambda: service.model_ready("x")) == (
        ErrorCode.NOT_FOUND,
        "Request for unknown model: 'x' is not found",
    )
    assert refusal(lambda: service.model_ready("m", "9"))[0] is ErrorCode.NOT_FOUND
    assert refusal(lambda: service.model_ready("m", "x"))[0] is ErrorCode.INVALID_ARG


def test_server_metadata() -> None:
    message = of().server_metadata()
    assert (message.name, tuple(message.extensions)) == ("triton", EXTENSIONS)
    named = ServerSettings(server=GeneralSettings(id="mine"))
    assert service_of(FakeRouter(), named).server_metadata().name == "mine"


def test_model_metadata() -> None:
    service = of(entry("m", 2), entry("m", 10), LOADING)
    message = service.model_metadata("m")
    assert (message.name, list(message.versions), message.platform) == ("m", ["2", "10"], "identity")
    (tensor,) = message.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("INPUT0", "FP32", [-1, 16])
    assert [tensor.name for tensor in message.outputs] == ["OUTPUT0"]
    assert list(service.model_metadata("m", "2").versions) == ["2"]
    platform = 'platform: "onnxruntime_onnx" backend: "onnxruntime"'
    assert of(entry("o", config=platform)).model_metadata("o").platform == "onnxruntime_onnx"
    assert refusal(lambda: service.model_metadata("m", "3"))[0] is ErrorCode.UNAVAILABLE


async def test_statistics_of_the_whole_cluster() -> None:
    router = FakeRouter(entry("n"), entry("m", 2), entry("m", 1), LOADING)
    here, there = FakeChannel(counters(success=2)), FakeChannel(counters(success=40))
    router.pools["m:1"] = FakePool([here], [there])
    service = service_of(router)
    found = [
        (stats.name, stats.version, stats.inference_stats.success.count)
        for stats in (await service.statistics()).model_stats
    ]
    assert found == [("m", "1", 42), ("m", "2", 0), ("n", "1", 0)]
    assert [s.version for s in (await service.statistics("m")).model_stats] == ["1", "2"]
    assert [s.version for s in (await service.statistics("m", "2")).model_stats] == ["2"]


async def test_statistics_of_unknown_versions_are_refused() -> None:
    service = of(entry("m"), LOADING, UNLOADED)
    for arguments, text in (
        (("x",), "requested model 'x' is not available"),
        (("gone",), "requested model 'gone' is not available"),
        (("m", "3"), "requested model version is not available for model 'm'"),
        (("m", "9"), "requested model version is not available for model 'm'"),
        (
            ("m", "x"),
            "failed to get model version from specified version string 'x' (details: stol), "
            "version should be an integral value > 0",
        ),
    ):
        with pytest.raises(InferError) as caught:
            await service.statistics(*arguments)
        assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, text)


async def test_repository() -> None:
    repository = FakeRepository(("m", "1", "READY", ""), ("n", "1", "UNAVAILABLE", "why"), ("o", "", "", ""))
    service = service_of(FakeRouter(), repository=repository)
    found = [(m.name, m.version, m.state, m.reason) for m in (await service.repository_index()).models]
    assert found == repository.rows
    assert [m.name for m in (await service.repository_index(ready=True)).models] == ["m"]
    await service.load_model("m", "{}", {"1/f": b"x"})
    await service.unload_model("m", unload_dependents=True)
    assert repository.calls == [("load", "m", "{}", {"1/f": b"x"}), ("unload", "m", True)]


async def test_rollouts_are_the_managers() -> None:
    repository = FakeRepository()
    service = service_of(FakeRouter(), repository=repository)
    assert (await service.rollout("m")).model == "m"
    await service.change_rollout("m", RolloutChange("pause"), "ops")
    assert repository.calls == [("rollout", "m", RolloutChange("pause"), "ops")]


async def test_a_version_without_a_usable_replica_is_unavailable_in_the_index() -> None:
    router = FakeRouter(entry("m"), entry("n"))
    rows = (("m", "1", "READY", ""), ("n", "1", "READY", ""), ("new", "1", "READY", ""))
    service = service_of(router, repository=FakeRepository(*rows))
    router.out.add("n:1")
    found = {m.name: (m.state, m.reason) for m in (await service.repository_index()).models}
    assert found == {"m": ("READY", ""), "n": ("UNAVAILABLE", "replica r: stopped"), "new": ("READY", "")}
    assert [m.name for m in (await service.repository_index(ready=True)).models] == ["m", "new"]


async def test_load_with_files_is_refused_where_uploads_are_not_allowed() -> None:
    repository = FakeRepository()
    settings = ServerSettings(repository=RepositorySettings(allow_upload=False))
    service = service_of(FakeRouter(), settings, repository=repository)
    with pytest.raises(
        InferError, match="failed to load 'm', files in load requests are not accepted"
    ) as raised:
        await service.load_model("m", "{}", {"1/model.py": b"x"})
    assert raised.value.code is ErrorCode.UNSUPPORTED
    await service.load_model("m", "{}", {})
    assert repository.calls == [("load", "m", "{}", {})]


def test_resolve_single_refuses_a_decoupled_model() -> None:
    service = of(entry("m"), entry("d", config="model_transaction_policy { decoupled: true }"))
    assert refusal(lambda: service.resolve_single("d", "", "ModelInfer RPC")) == (
        ErrorCode.UNSUPPORTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )
    assert service.resolve("d").decoupled
    assert service.resolve_single("m", "1", "ModelInfer RPC") is service.resolve("m")


def test_default_deadline_is_for_requests_that_bring_none() -> None:
    found, request = entry("m"), InferRequest("m", "", ())
    for default, given, seconds in ((0.0, 0.0, 0.0), (30.0, 0.0, 30.0), (30.0, 500.0, 500.0)):
        router = FakeRouter(found)
        service = service_of(router, ServerSettings(ingress=IngressSettings(default_deadline_s=default)))
        now = time.monotonic()
        deadline = now + given if given else 0.0
        service.submit(found, msgspec.structs.replace(request, deadline=deadline), no_sink)
        (sent,) = router.requests
        assert sent.deadline == (pytest.approx(now + seconds, abs=5) if seconds else 0)


def test_resolve_refuses_an_unknown_model() -> None:
    assert refusal(lambda: of().resolve("m"))[1] == "Request for unknown model: 'm' is not found"
