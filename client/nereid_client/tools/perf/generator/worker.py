"""The process of a generator: it is told jobs over a connection of its parent, and tells what it has seen."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final

import numpy as np

import nereid_client
from nereid_client.tools.perf.generator.arrivals import Offsets, dealt
from nereid_client.tools.perf.generator.job import Job, Script, Told
from nereid_client.tools.perf.generator.load import Generator
from nereid_client.tools.perf.generator.priority import run_first

_PATHS: Final = [str(Path(nereid_client.__file__).parents[1])]
_CODE: Final = (
    # Ctrl-C, and what ends a group (`timeout`, systemd), are for the parent, which asks once more for what
    # was seen, and ends this process. It ends with its parent, too.
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    f"import sys; sys.path[:0] = {_PATHS}; from nereid_client.tools.perf.generator.worker import main; main()"
)
_LEAD_NS: Final = 20_000_000
"""From the order to begin until the first request."""


def main() -> None:
    """Run the process; its argument is the file descriptor of the connection."""
    import uvloop

    connection = Connection(int(sys.argv[1]))
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(connection))


async def _serve(connection: Connection) -> None:
    generator: Generator | None = None
    while True:
        try:
            word, value = await asyncio.to_thread(connection.recv)
        except EOFError:
            os._exit(0)
        if word == "open":
            generator = Generator(value)
            # An open loop has to be on time. A closed one competes with the server like any other client.
            run_first(value.arrivals is not None)
            connection.send(await _opened(generator))
        elif generator is not None:
            if word == "begin":
                generator.begin(value)
                continue
            if word == "stop":
                await generator.stop()
            await asyncio.to_thread(connection.send, generator.told())


async def _opened(generator: Generator) -> str:
    gc.collect()
    gc.disable()  # no pauses; records are plain numbers
    try:
        await generator.open()
    except (OSError, TimeoutError) as error:
        return str(error) or type(error).__name__
    return ""


class NoConnection(Exception):
    """The server could not be reached."""


class Workers:
    """The generators of a run, each a process. Use it as a context manager."""

    def __init__(self, number: int) -> None:
        self._pipes: list[Any] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(number):
            ours, theirs = Pipe()
            with theirs:
                command = [sys.executable, "-P", "-c", _CODE, str(theirs.fileno())]
                self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
            self._pipes.append(ours)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def begin(self, jobs: Sequence[Job]) -> int:
        """Open connections and begin; return the moment of the begin, of the monotonic clock.

        Raises:
            NoConnection: the server cannot be reached.
        """
        for pipe, job in zip(self._pipes, jobs, strict=True):
            pipe.send(("open", job))
        for text in [pipe.recv() for pipe in self._pipes]:
            if text:
                raise NoConnection(text)
        start = time.monotonic_ns() + _LEAD_NS
        for pipe in self._pipes:
            pipe.send(("begin", start))
        return start

    def tell(self) -> list[Told]:
        """Return what each has seen since it was asked last."""
        return self._ask("tell")

    def stop(self) -> list[Told]:
        """End the load; return what each has seen since it was asked last."""
        return self._ask("stop")

    def _ask(self, word: str) -> list[Told]:
        for pipe in self._pipes:
            pipe.send((word, None))
        return [pipe.recv() for pipe in self._pipes]


def shares(job: Job, number: int) -> list[Job]:
    """Return the jobs of several generators that together do this one."""
    if job.script is not None:
        parts = _acts(job.script, job.arrivals, number)
    else:
        moments = [None] * number if job.arrivals is None else dealt(job.arrivals, number)
        parts = [{"arrivals": moments[i], "sequences": job.sequences[i::number]} for i in range(number)]
    return [
        replace(
            job,
            concurrency=_share(job.concurrency, number, i),
            connections=max(_share(job.connections, number, i), 1),
            **parts[i],
        )
        for i in range(number)
    ]


def _acts(script: Script, arrivals: Offsets | None, number: int) -> list[dict[str, Any]]:
    """Divide a script: a sequence is for one generator, other requests are dealt in turn."""
    sequence = script.rows[:, 3]
    owner = np.where(sequence >= 0, sequence, np.arange(len(sequence))) % number
    return [
        {
            "script": script._replace(rows=script.rows[owner == i], answers=f"{script.answers}.{i}"),
            "arrivals": None if arrivals is None else arrivals[owner == i],
        }
        for i in range(number)
    ]


def _share(total: int, number: int, i: int) -> int:
    return total // number + (i < total % number)
