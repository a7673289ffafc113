"""Running the generator in a test."""

import time

from nereid_client.tools.perf.generator.job import Job, Rows, Told, rows_of
from nereid_client.tools.perf.generator.load import Generator
from tests.waiting import until


async def run(load: Job, count: int = 0) -> tuple[Rows, dict[str, int]]:
    """Run a job until so many requests, or all of an open loop, have ended; return records and failures."""
    told = await told_of(load, count or len(load.arrivals))  # type: ignore[arg-type]
    return rows_of([told]), dict(told.errors)


async def told_of(load: Job, count: int) -> Told:
    """Run a job until so many requests have ended; return what its generator has seen."""
    generator = Generator(load)
    await generator.open()
    generator.begin(time.monotonic_ns())
    await until(lambda: len(generator._records) >= count, timeout=60)
    await generator.stop()
    return generator.told()
