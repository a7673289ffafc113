"""Puts together what serves requests in a process: ingress, engine, tests and benchmarks all do it so."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from app.access.audit import Audit
from app.access.token_watch import TokenWatch
from app.cache.response_cache import make_cache
from app.core.observability.generation import GenerationFigures
from app.core.observability.live_settings import LiveSettings
from app.core.observability.statistics import CustomFamily
from app.core.observability.trace_settings import TraceSettings
from app.core.system.nodes import Machines, this_machine
from app.core.tape.switch import TapeSwitch
from app.cost.assembly import Place, account
from app.cost.reporter import Clients, CostReporter, Send
from app.cost.tap import CostTap
from app.dispatch.router import Router
from app.drift.reporter import DriftReporter
from app.ingress.access.caller import GRANT, confined
from app.ingress.access.guard import Guard
from app.ingress.client_memory.registry import SharedMemory
from app.ingress.fronts import Front, Parts, open_fronts
from app.ingress.metrics.drift_families import DriftReading
from app.ingress.metrics.ingress_families import FrontReading, IngressReading
from app.ingress.metrics.machine import Machine
from app.ingress.metrics.page import own_families, render
from app.ingress.metrics.tape_families import TapeReading
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.service.routed import Repository, RoutedInferenceService
from app.ingress.service.use_reports import UseReports
from app.ingress.tracing.observer import Configure, Observer
from app.native.choice import is_native
from app.native.strings import use_compiled_strings
from app.rollout.mirror import Mirror
from app.routing.pools import Pools
from app.routing.targets import Tap
from app.routing.waiting_room import Demand, WaitingLimits
from app.settings.settings import ServerSettings
from app.transport.memory.client_regions import use_mappings

if TYPE_CHECKING:
    from app.tape.assembly import Tape


def make_router(
    settings: ServerSettings, pools: Pools, demand: Demand | None = None, tap: Tap | None = None
) -> Router:
    """Return the router of requests of clients; see `Router` for the arguments."""
    if is_native(settings.cluster.data_plane):
        use_mappings()
        use_compiled_strings()
    waiting = settings.residency
    # Local to this process: entries in Redis could outlive the models that made them, and the key has only
    # the applications that serve an ensemble's steps now.
    cache = make_cache({name: values for name, values in settings.cache.items() if name == "local"})
    return Router(
        pools,
        demand=demand,
        limits=WaitingLimits(waiting.waiting_requests, waiting.waiting_bytes, waiting.waiting_s),
        cache=cache,
        reported=settings.metrics.config,
        mirror=Mirror(recorded(settings)),
        tap=tap,
    )


def recorded(settings: ServerSettings) -> Path | None:
    """Return where this node's tape is; None without one."""
    if not settings.tape.directory:
        return None
    from app.tape.files import node_directory

    try:
        return node_directory(settings.tape.directory)
    except OSError:  # which `make_tape` reports
        return None


def make_tape(settings: ServerSettings, secret: bytes) -> "Tape | None":
    """Start what records requests of clients, whose `tap` is for `make_router`; None without `--tape`.

    Args:
        settings: of the server.
        secret: the same in all ingresses of the server.
    """
    if not settings.tape.directory:
        return None
    from app.tape.assembly import open_tape

    token = _token if settings.access.tokens_file else str
    return open_tape(settings.tape, secret, token)


def _token() -> str:
    """Return the name of the client's token; "" for none."""
    grant = GRANT.get()
    return "" if grant is None else grant.name


def make_cost_tap(settings: ServerSettings) -> CostTap | None:
    """Return what counts requests of clients, for `make_router`; None where nobody asks who they are."""
    if not settings.cost.enabled or not settings.access.tokens_file:
        return None
    return CostTap(GRANT.get, is_native(settings.cluster.data_plane))


def make_account(
    settings: ServerSettings, place: Place, router: Router, send: Send, tap: CostTap | None
) -> CostReporter | None:
    """Return what reports costs, see `account`; None with `--cost=false`."""
    return account(place, router, send, tap) if settings.cost.enabled else None


def make_service(
    settings: ServerSettings, router: Router, repository: Repository, regions: str, tape: "Tape | None" = None
) -> RoutedInferenceService:
    """Return the service under the fronts.

    Args:
        settings: of the server.
        router: routes its requests.
        repository: loads models.
        regions: the directory of clients' shared memory.
        tape: records requests, which clients may give feedback on.
    """
    shared_memory = SharedMemory(regions, settings.devices.allow_client_shm, client=confined)
    keeper = browser = None
    if tape is not None:
        from app.feedback.keeper import Keeper
        from app.tape.browsing import TapeBrowser

        keeper = Keeper(tape.directory, settings.tape.max_age_s)
        browser = TapeBrowser(tape.directory)
    return RoutedInferenceService(settings, router, repository, shared_memory, keeper, browser)


class Serving:
    """The fronts of a process and what they share, from the guard before them to `/metrics`.

    Args:
        settings: addresses, ports, and which fronts are open.
        service: answers the requests.
        configure: sends a change of live settings to the repository manager.
        suffix: the end of trace file names.
        tape: records requests; None for none.
        drift: what is watched of models; None for nothing.
        cost: the account of costs; None for none.
        machines: returns where the server runs; may take its time.

    Attributes:
        observer: traces and logs requests.
        fronts: those that are open.
        following: what runs beside them.
    """

    def __init__(
        self,
        settings: ServerSettings,
        service: RoutedInferenceService,
        configure: Configure | None = None,
        suffix: str = "",
        tape: "Tape | None" = None,
        drift: DriftReporter | None = None,
        cost: CostReporter | None = None,
        machines: Callable[[], Machines] = this_machine,
    ) -> None:
        self._machines = machines
        self._settings, self._tape, self._drift, self._cost = settings, tape, drift, cost
        self._service = service
        live = LiveSettings(settings.log, TraceSettings(settings.trace), TapeSwitch(settings.tape.rate))
        self.observer = Observer(live, configure, suffix, self._switch_tape)
        self.fronts: list[Front] = []
        self._generation = GenerationFigures()
        self.following: list[asyncio.Task[None]] = []

    async def open(
        self, use: UseReports | None = None, custom: Callable[[], Iterable[CustomFamily]] = tuple
    ) -> None:
        """Listen.

        Args:
            use: knows the models on demand, where there are any.
            custom: returns custom metrics that no replica reports.

        Raises:
            OSError: an address or port cannot be used, or a certificate's file cannot be read.
            ValueError: a certificate does not fit its key.
        """
        settings, service = self._settings, self._service
        shown = settings.metrics
        machine = Machine(shown.cpu, shown.gpu, shown.interval_ms)
        send_buffers = SendBufferLimit(settings.ingress.send_buffer_bytes)
        guard = self._open_guard()
        read = self._reading(send_buffers, guard, use)

        def metrics() -> Awaitable[bytes]:
            return render(service, shown.config, machine, read(), custom())

        if service.keeper is not None:
            self.following.append(asyncio.get_running_loop().create_task(service.keeper.run()))
        parts = Parts(
            settings,
            service,
            metrics,
            self.observer,
            send_buffers,
            guard,
            self._generation,
            lambda: own_families(service, read(), shown.config),
            self._machines,
        )
        self.fronts = await open_fronts(parts)

    def _switch_tape(self, switch: TapeSwitch) -> None:
        if self._tape is not None:
            self._tape.tap.switch = switch
            self._service.tap_anew()

    async def stop(self, grace_s: float) -> None:
        """Answer requests on the open connections until they close, or for some seconds."""
        await asyncio.gather(*(front.stop(grace_s) for front in self.fronts))
        for task in self.following:
            task.cancel()

    async def close(self) -> None:
        """Save all traces, and what clients have said of answers."""
        await asyncio.to_thread(self.observer.close)
        if self._service.keeper is not None:
            await asyncio.to_thread(self._service.keeper.close)

    def _open_guard(self) -> Guard | None:
        """Return what decides who may do what; None if everybody may do everything unrecorded."""
        if not self._settings.audits:
            return None
        access = self._settings.access
        audit = Audit(access.audit_log)
        if not access.tokens_file:
            return Guard(None, audit)
        watch = TokenWatch(access.tokens_file)
        self.following.append(asyncio.get_running_loop().create_task(watch.follow()))
        if self._cost is not None:
            self._cost.clients = Clients(watch.grants.budgets, watch.grants.overspend)
        return Guard(watch.grants, audit)

    def _reading(
        self, send_buffers: SendBufferLimit, guard: Guard | None, use: UseReports | None
    ) -> Callable[[], IngressReading]:
        """Return what reads this process for `/metrics`."""
        tokens = None if guard is None or guard.grants is None else guard.grants.counted
        used = {"http": self._settings.http.certificates, "grpc": self._settings.grpc.certificates}
        # Of the files as they are now: a front reads its certificate once, when it starts.
        tape, drift, cost = self._tape, self._drift, self._cost
        certificates = {front: files.expires_at() for front, files in used.items() if files is not None}

        def read() -> IngressReading:
            fronts = {front.name: FrontReading(front.connections, front.refusals) for front in self.fronts}
            figures = None if use is None else use.figures
            texts = self._generation if self._settings.openai.enabled else None
            recorded = None if tape is None else TapeReading(tape.counts, tape.lag_s)
            watched = DriftReading() if drift is None else DriftReading(drift.answer.figures, drift.admitted)
            waiting, spent = self._service.waiting, None if cost is None else cost.answer
            return IngressReading(
                send_buffers, fronts, certificates, tokens, waiting, figures, texts, recorded, watched, spent
            )

        return read
