"""Ensembles are counted wherever they ran: in each ingress, and in replicas whose models called them."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from app.core.errors import InferError
from app.core.tensors import InferRequest
from app.dispatch.router import Router
from app.ensemble.runner import EnsembleRunner
from app.ingress.service.peers import Peers
from app.ingress.service.routed import RoutedInferenceService
from app.ray_adapter.serve.replicas import ReplicaAddress
from app.routing.pool import ReplicaPool
from app.transport.settings import TransportSettings
from tests.unit.app.routing_fakes import SETTINGS, FakeChannel, FakePool, FakeRepository, FakeRouter, counters
from tests.unit.ensembles import Models, ensemble, entry, model, step, tensor
from tests.waiting import until

KEY = b"a key of the cluster, 32 bytes.."
CHAIN = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"))


def ran(count: int) -> EnsembleRunner:
    """What has run `count` requests of the ensemble."""
    models = Models(e=CHAIN, m=model())
    for _ in range(count):
        models.infer(tensor())
        models.take("m").answer(tensor("y"))
    return models.ensembles


class Caller(FakeChannel):
    """A replica whose model has called the ensemble."""

    def __init__(self, runner: EnsembleRunner) -> None:
        super().__init__(counters())
        self._runner = runner

    async def control(self, verb: str, payload: Any = None, timeout: float | None = None) -> Any:
        assert verb == "ensembles"
        return msgspec.to_builtins(self._runner.reports())


@pytest.fixture
async def peers() -> AsyncIterator[list[Peers]]:
    """Three ingresses, of which the last is on another node; each has run 1, 2, 4 requests."""
    made = [Peers(ran(count), KEY) for count in (1, 2, 4)]
    pools = [ReplicaPool("ingress", "here", KEY, TransportSettings(arena_bytes=0)) for _ in made]
    with tempfile.TemporaryDirectory() as directory:
        for number, (peer, pool) in enumerate(zip(made, pools, strict=True)):
            private = Path(directory, str(number))
            await peer.open(str(private), "127.0.0.1", pool)
        addresses = tuple(
            ReplicaAddress(str(n), "there" if n == 2 else "here", p.addresses["unix"], p.addresses["tcp"])
            for n, p in enumerate(made)
        )
        pools[0].update_from_thread(addresses)
        await until(lambda: len(pools[0].channels) == 3)
        yield made
        await pools[0].close(0)
        for peer in made:
            await peer.close()


def service(peer: Peers, *callers: Caller) -> RoutedInferenceService:
    caller = msgspec.structs.replace(entry("p", model()), makes_calls=True)
    router = FakeRouter(entry("e", CHAIN), caller, entry("m", model()))
    router.pools["p:1"] = FakePool([*callers], [])
    router.pools["m:1"] = FakePool([FakeChannel(AssertionError("its model calls nothing"))], [])
    made = RoutedInferenceService(SETTINGS, cast(Router, router), FakeRepository())
    made.peers, made.ensembles = peer, peer._runner
    return made


async def test_statistics_include_every_ingress(peers: list[Peers]) -> None:
    answer = await service(peers[0]).statistics("e")
    assert [(one.name, one.inference_count) for one in answer.model_stats] == [("e", 1 + 2 + 4)]


async def test_local_statistics_exclude_other_nodes(peers: list[Peers]) -> None:
    made = service(peers[0])
    ((_, report),) = await made.reports([entry("e", CHAIN)], local=True)
    assert report.inference_count == 1 + 2


async def test_statistics_include_ensembles_called_by_models(peers: list[Peers]) -> None:
    answer = await service(peers[0], Caller(ran(8)), Caller(ran(16))).statistics("e")
    assert answer.model_stats[0].inference_count == 1 + 2 + 4 + 8 + 16


async def test_ingress_refuses_requests_over_a_channel(peers: list[Peers]) -> None:
    with pytest.raises(InferError, match="accepts no requests"):
        peers[0].submit(InferRequest("e", "", ()), lambda _: None)
    with pytest.raises(InferError, match="unknown control verb 'x'"):
        await peers[0].control("x", None)
