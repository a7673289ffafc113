"""The start of a repository manager, while clients ask for more."""

import asyncio

from app.routing.manager_client import LoadRequest
from tests.unit.deployments.manager.manager_bench import Bench, load, load_error, started
from tests.waiting import until


async def test_a_load_of_a_client_during_the_start_does_not_fail_the_start(bench: Bench) -> None:
    """A server with `--exit-on-error` ended because a client had begun to load a model by then."""
    for name in ("m", "coming", "broken"):
        bench.add(name)
    bench.serve.failures["broken:1"] = "Internal: no such file"
    for name in ("m", "coming"):
        bench.serve.gates[name] = asyncio.Event()
    made = bench.begin(model_control_mode="explicit", load_model=["m"])
    await made.check_health()
    await until(lambda: bench.serve.loading == 1)
    loading = asyncio.create_task(load(made, "coming"))
    await until(lambda: bench.serve.loading == 2)
    await load_error(made, "broken")
    bench.serve.gates["m"].set()
    await started(made)
    assert made.table.initialised and made.table.all_loaded
    bench.serve.gates["coming"].set()
    await loading


async def test_start_is_whole_once_the_model_that_failed_is_mended(bench: Bench) -> None:
    bench.add("good")
    bench.add("odd", "no configuration")
    made = await bench.start_explicit("good", "odd")
    assert made.table.initialised and not made.table.all_loaded
    bench.add("odd")
    await made.load(LoadRequest("odd"))
    assert made.table.all_loaded
