"""Ensembles with a response cache of their own: hits need no step, and are told from misses."""

import asyncio
from typing import Any

import msgspec
import pytest

from app.cache.response_cache import LocalCache
from app.core.errors import Failure, internal
from app.core.rollout.split import Split
from app.core.tensors import RequestedOutput, Tensor
from app.ensemble.runner import EnsembleRunner
from app.routing.table import RoutingTable
from tests.unit.ensembles import DECOUPLED, Models, ensemble, model, step, tensor

CACHE = "response_cache { enable: true }"
ONE = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"), more=CACHE)


def models(size: int = 1 << 20, **configs: str) -> Models:
    made = Models(**{"e": ONE, "a": model(), **configs})
    made.ensembles = EnsembleRunner(made, LocalCache(size))
    return made


def counts(of: Models) -> dict[str, int]:
    stats = of.ensembles.report(of.resolve("e"))
    names = ("success", "fail", "queue", "compute_infer", "cache_hit", "cache_miss")
    return {name: getattr(stats, name).count for name in names if getattr(stats, name).count}


async def ask(of: Models, *inputs: Tensor, fill: int | None = None, **fields: Any) -> bytes:
    """Send a request; `fill` is what the step answers with, None for a request that needs none."""
    before = len(of.responses)
    of.infer(*(inputs or (tensor(),)), **fields)
    if fill is not None:
        of.take("a").answer(tensor("y", fill=fill))
    await asyncio.sleep(0)
    assert of.asked == []
    (response,) = of.responses[before:]
    assert (response.model_name, response.id, response.final) == ("e", fields.get("id", ""), True)
    return bytes(response.outputs[0].data)


async def test_a_hit_needs_no_step() -> None:
    made = models()
    assert await ask(made, id="1", fill=7) == bytes([7]) * 16
    assert await ask(made, id="2") == bytes([7]) * 16
    assert await ask(made, tensor(fill=9), fill=8) == bytes([8]) * 16
    assert counts(made) == {"success": 3, "queue": 3, "compute_infer": 2, "cache_hit": 1, "cache_miss": 2}
    message = made.ensembles.report(made.resolve("e"))
    assert (message.inference_count, message.execution_count) == (2, 2)


async def test_uncacheable_requests_run_their_steps() -> None:
    made = models(size=100)
    await ask(made, fill=1)
    await ask(made, fill=1)
    assert counts(made)["cache_miss"] == 2, "a response that does not fit is asked for again"
    made = models()
    await ask(made, fill=1, sequence_id=5)
    await ask(made, fill=1, regions=True)
    assert counts(made) == {"success": 2, "queue": 2, "compute_infer": 2}


async def test_failure_is_not_cached() -> None:
    made = models()
    made.infer(tensor())
    made.take("a").answer(error=internal("no"))
    await asyncio.sleep(0)
    assert made.responses[0].failure is not None
    assert await ask(made, fill=3) == bytes([3]) * 16
    assert counts(made)["fail"] == 2, "once for the step, once for the request"
    assert counts(made)["cache_miss"] == 1


WITHIN = ensemble(step({"IN": "IN"}, {"OUT": "OUT"}, "inner"), more=CACHE)
INNER = ensemble(step({"x": "IN"}, {"y": "OUT"}, "a"))


@pytest.mark.parametrize("config", [ONE, WITHIN], ids=["step", "within"])
async def test_reloaded_step_is_called_again(config: str) -> None:
    made = models(e=config, inner=INNER)
    await ask(made, fill=1)
    assert await ask(made) == bytes([1]) * 16
    entries = [
        msgspec.structs.replace(entry, content="other") if entry.name == "a" else entry
        for entry in made.table.entries
    ]
    made.table = msgspec.structs.replace(made.table, entries=tuple(entries))
    assert await ask(made, fill=2) == bytes([2]) * 16


@pytest.mark.parametrize(
    "config", [ensemble(step({"x": "IN"}, {"y": "OUT"}, "a")), ONE.replace(CACHE, CACHE + DECOUPLED)]
)
async def test_ensemble_without_cache_runs_its_steps(config: str) -> None:
    made = models(e=config)
    for _ in range(2):
        made.infer(tensor())
        made.take("a").answer(tensor("y"))
    assert counts(made).keys().isdisjoint({"cache_hit", "cache_miss"})


async def test_invalid_request_is_not_looked_up() -> None:
    made = models()
    made.infer(tensor("WRONG"))
    made.infer(tensor(), outputs=(RequestedOutput("NONE"),))
    await asyncio.sleep(0)
    assert [type(response.failure) for response in made.responses] == [Failure] * 2
    assert counts(made) == {"fail": 2}


async def test_nothing_is_cached_while_a_step_is_in_a_rollout() -> None:
    made = models()
    await ask(made, fill=7)
    second = msgspec.structs.replace(made.table.resolve("a"), version=2)
    splits = (Split("r", "a", stable=1, candidate=2),)
    made.table = RoutingTable(2, True, (*made.table.entries, second), splits=splits)
    assert await ask(made, fill=8) == bytes([8]) * 16, "either version may answer"
