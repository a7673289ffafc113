"""The replica's side of a model's process: starts it, does for it what needs Ray, and starts it again.

The process is the replica for requests: ingresses connect to it. This one answers Serve, and ingresses that
hear nothing of the process because it is busy.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from app.core.encoding import to_exact_json
from app.core.errors import InferError, internal
from app.core.inference import Sink
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest
from app.transport.channel.server import ChannelServer
from app.transport.loops.thread import LoopThread
from deployments.model_process.activity import Activity
from deployments.model_process.calls import HOST_SETTINGS
from deployments.model_process.handle_channel import HandleChannel
from deployments.model_process.requests import HostHandler
from deployments.model_process.run import Run
from deployments.model_process.start_message import Start
from deployments.replica.replica import Place
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
_ANSWER_S: Final = 1.0
_DESCRIBE_S: Final = 10.0
_LATE: Final = 1.5
"""Times of the limit of an execution after which its process is killed from here: it would do so before."""
_DRAIN_S: Final = 75.0


class ProcessReplica:
    """One replica of a model version, in a process of its own.

    Args:
        spec: the model version, whose files are on this node.
        place: where the process is to listen.
        plane: the thread of this process's data-plane loop.
        restarts: waits before a start after an unexpected end, and returns how many there were. Blocks.
        loaded: called after each start.

    Attributes:
        addresses: where the process is reached, and this one, by scheme.
    """

    def __init__(
        self,
        spec: ModelSpec,
        place: Place,
        plane: LoopThread,
        restarts: Callable[[], int],
        loaded: Callable[[], object],
        seconds: float,
    ) -> None:
        """`seconds` is the time limit of an execution, 0 for none."""
        self.addresses: dict[str, str] = {}
        self._spec = spec
        self._place = place
        self._plane = plane
        self._restarts = restarts
        self._on_loaded = loaded
        self._seconds = seconds
        self._activity = Activity()
        self._handler = HostHandler(spec.manager, self._busy_s)
        self._host = ChannelServer(self._handler, spec.key, HOST_SETTINGS)
        self._calls = HandleChannel(spec, place.unix)
        self._tasks = Tasks()
        self._run: Run | None = None
        self._description = Description(spec, error="not loaded")

    def load(self, restarts: int) -> Description:
        """Start the process and wait until the model is loaded; a failure is in the description. Blocks."""
        self._description = self._plane.call(self._load(restarts))
        return self._description

    async def _load(self, restarts: int) -> Description:
        directory = os.path.dirname(self._place.unix)
        path = os.path.join(directory, f"host-{os.getpid()}.sock")
        addresses = await self._host.listen(path, self._place.host)
        self.addresses = {f"host_{address.partition(':')[0]}": address for address in addresses}
        try:
            description = await self._start(restarts)
        except InferError as error:
            return Description(self._spec, error=error.with_code())
        if not description.error:
            self._tasks.start(self._keep_running())
        return description

    async def _start(self, restarts: int) -> Description:
        """Start the process once.

        Raises:
            InferError: it cannot be started, or ended before its model was loaded.
        """
        self._activity.clear()
        start = Start(
            to_exact_json(self._spec),
            self._place,
            self.addresses["host_unix"],
            os.getpid(),
            restarts,
        )
        self._handler.begin()
        starting = asyncio.ensure_future(
            asyncio.to_thread(Run.start, self._spec, start, self._activity.descriptor)
        )
        try:
            self._run = run = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(InferError):
                (await starting).discard()
            raise
        run.watch()
        reported, addresses = await self._reported(run)
        description = self._with_spec(reported)
        if description.error:
            await self._end(run)
            return description
        # The next process listens where this one does: Serve asks for the addresses once.
        port = int(addresses["tcp"].rpartition(":")[2])
        self._place = msgspec.structs.replace(self._place, port=port)
        self.addresses |= addresses
        return description

    async def _reported(self, run: Run) -> tuple[Description, dict[str, str]]:
        """Wait for what the process tells of its load.

        Raises:
            InferError: INTERNAL with its output when it ended before.
        """
        loaded = asyncio.ensure_future(self._handler.loaded())
        ended = asyncio.ensure_future(run.ended.wait())
        try:
            await asyncio.wait((loaded, ended), return_when=asyncio.FIRST_COMPLETED)
            if loaded.done():
                return loaded.result()
        finally:
            loaded.cancel()
            ended.cancel()
        how = await asyncio.to_thread(run.ending)
        raise internal(f"Stub process '{self._spec.name}_0_0' is not healthy. It {how}")

    async def _keep_running(self) -> None:
        """Start the process again whenever it has ended."""
        while True:
            run = self._run
            assert run is not None
            await self._watched(run)
            how = await asyncio.to_thread(run.ending)
            logger.error("the process of model '%s' %s", self._spec.name, how)
            while not await self._started_again():
                pass

    async def _started_again(self) -> bool:
        restarts = await asyncio.to_thread(self._restarts)
        try:
            description = await self._start(restarts)
        except InferError as error:
            logger.error("model '%s' cannot be started again: %s", self._spec.name, error.message)
            return False
        except Exception:
            logger.exception("starting model '%s' again", self._spec.name)
            return False
        if description.error:
            logger.error("model '%s' cannot be loaded again: %s", self._spec.name, description.error)
            return False
        await asyncio.to_thread(self._on_loaded)
        return True

    async def _watched(self, run: Run) -> None:
        """Wait for the end of a process, and end one that cannot go on."""
        look_s = min(_LOOK_S, self._seconds / 2) if self._seconds else _LOOK_S
        silent_since = 0.0
        while not run.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await run.ended.wait()
            if run.ended.is_set():
                return
            reason, answers = await self._trouble()
            if answers or self._busy_s():
                silent_since = 0.0
            else:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > self._spec.server.transport.peer_timeout:
                    reason = "it does not answer, though it executes nothing"
            if reason:
                logger.error("the process of model '%s' is ended: %s", self._spec.name, reason)
                run.kill()
                await run.ended.wait()

    async def _trouble(self) -> tuple[str, bool]:
        """Return why the process has to be ended, "" if it has not, and whether it answers."""
        busy_s = self._busy_s()
        if self._seconds and busy_s > _LATE * self._seconds + _ANSWER_S:
            return f"an execution has taken {busy_s:.1f} s, more than the {self._seconds:g} s allowed", False
        try:
            return str(await self._handler.ask("health", _ANSWER_S)), True
        except TimeoutError:
            return "", False

    def _busy_s(self) -> float:
        """Return for how long the process executes, if it may do so at all."""
        run = self._run
        if run is None or run.ended.is_set() or run.is_stopped():
            return 0.0
        return self._activity.busy_s()

    async def describe(self) -> Description:
        """Return the outcome of the load with the present instance groups."""
        if not self._description.error:
            with suppress(TimeoutError):
                described = await self._plane.run(self._handler.ask("describe", _DESCRIBE_S))
                present = self._with_spec(msgspec.msgpack.decode(described, type=Description))
                # The manager asks after each change of the instances, which the next process starts with.
                self._spec = present.spec
                return present
        return self._description

    def _with_spec(self, reported: Description) -> Description:
        """Return a report of the process with the present specification, whose texts it has escaped."""
        spec = msgspec.structs.replace(self._spec, config=reported.spec.config)
        return msgspec.structs.replace(reported, spec=spec)

    def broken(self) -> str:
        """Return "": a process that ends is started again."""
        return ""

    def send(self, request: InferRequest, sink: Sink) -> Callable[[], None]:
        """Send a request of a Serve handle to the process; on the data-plane loop.

        Raises:
            InferError: UNAVAILABLE while it is started again.
        """
        return self._calls.send(request, sink)

    async def close(self) -> None:
        """Have the process finish its requests, unload and end."""
        await self._plane.run(self._close())

    async def _close(self) -> None:
        await self._tasks.cancel()
        run = self._run
        if run is not None:
            await self._end(run)
        self._calls.close()
        self._handler.close()
        await self._host.close()

    async def _end(self, run: Run) -> None:
        if not self._handler.has_loaded():
            run.kill()  # a load may take for ever, and nobody waits for it
        self._handler.tell("stop")
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await run.ended.wait()
        run.kill()
        run.close()
