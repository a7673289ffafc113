"""HTTP, gRPC and metrics over an engine."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from app.access.audit import Audit
from app.access.token_watch import TokenWatch
from app.core.observability.live_settings import LiveSettings
from app.core.observability.trace_settings import TraceSettings
from app.core.statistics import CustomFamily
from app.ingress.access.guard import Guard
from app.ingress.fronts import Front, open_fronts
from app.ingress.metrics.ingress_families import FrontReading, IngressReading
from app.ingress.metrics.machine import Machine
from app.ingress.metrics.page import render
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.tracing.observer import Observer
from app.settings.settings import ServerSettings
from backends.python.api import metrics

if TYPE_CHECKING:
    from app.engine.engine import Engine


class Fronts:
    """The listeners of a process; each is opened once.

    Args:
        engine: answers the requests.
        settings: addresses, ports, and which fronts are open; by default those of the engine.
    """

    def __init__(self, engine: "Engine", settings: ServerSettings | None = None) -> None:
        self._engine = engine
        self._settings = settings or engine.settings
        self._open: list[Front] = []
        self._following: list[asyncio.Task[None]] = []
        self._observer: Observer | None = None

    def open(self) -> None:
        """Listen. Blocks.

        Raises:
            OSError: an address or port cannot be used, or a certificate's file cannot be read.
            ValueError: a certificate does not fit its key.
        """
        self._engine.plane.call(self._start())

    def close(self, grace_s: float) -> None:
        """Answer requests on the open connections until they close, or for some seconds. Blocks."""
        self._engine.plane.call(self._stop(grace_s))

    async def _start(self) -> None:
        settings, service = self._settings, self._engine.service
        repository = self._engine.repository
        live = LiveSettings(settings.log, TraceSettings(settings.trace))
        self._observer = observer = Observer(live, repository.configure)
        repository.observers.append(observer)
        machine = Machine(settings.metrics.cpu, settings.metrics.gpu, settings.metrics.interval_ms)
        send_buffers = SendBufferLimit(settings.ingress.send_buffer_bytes)
        guard = self._guard()

        def reading() -> IngressReading:
            fronts = {front.name: FrontReading(front.connections, front.refusals) for front in self._open}
            tokens = None if guard is None or guard.grants is None else guard.grants.counted
            return IngressReading(send_buffers, fronts, {}, tokens)

        self._open = await open_fronts(
            settings,
            service,
            lambda: render(service, settings.metrics.config, machine, reading(), process_metrics()),
            observer,
            send_buffers,
            guard,
        )

    def _guard(self) -> Guard | None:
        """Return what decides who may do what; None if everybody may do everything unrecorded."""
        access = self._settings.access
        if not self._settings.audits:
            return None
        if not access.tokens_file:
            return Guard(None, Audit(access.audit_log))
        watch = TokenWatch(access.tokens_file)
        self._following.append(asyncio.get_running_loop().create_task(watch.follow()))
        return Guard(watch.grants, Audit(access.audit_log))

    async def _stop(self, grace_s: float) -> None:
        await asyncio.gather(*(front.stop(grace_s) for front in self._open))
        self._open = []
        for task in self._following:
            task.cancel()
        if self._observer is not None:
            self._engine.repository.observers.remove(self._observer)
            await asyncio.to_thread(self._observer.close)
            self._observer = None


def process_metrics() -> list[CustomFamily]:
    """Return the custom metrics of the models of this process, and of the program around them."""
    return msgspec.convert(metrics.snapshot(), list[CustomFamily])
