"""Running the generator in a test."""

import time

from nereid_client.tools.perf.generator.job import Job, Rows, rows_of
from nereid_client.tools.perf.generator.load import Generator
from tests.waiting import until


async def run(load: Job, count: int = 0) -> tuple[Rows, dict[str, int]]:
    """Run a job until so many requests, or all of an open loop, have ended; return records and failures."""
    count = count or len(load.arrivals)  # type: ignore[arg-type]
    generator = Generator(load)
    await generator.open()
    generator.begin(time.monotonic_ns())
    await until(lambda: len(generator._records) >= count, timeout=60)
    await generator.stop()
    told = generator.told()
    return rows_of([told]), dict(told.errors)
