"""The inference service of an ingress: answers from the routing table, sends inference to replicas."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
from tritonclient.grpc import service_pb2 as pb

from app.access.tokens import ANONYMOUS
from app.core.config.model_config import input_specs, output_specs
from app.core.config.version_policy import parse_version
from app.core.drift.status import DriftStatus
from app.core.errors import InferError, invalid_arg, not_found, unsupported
from app.core.feedback.figures import FeedbackFigures
from app.core.feedback.records import Feedback
from app.core.feedback.reports import SlotScores
from app.core.inference import Call, Sink
from app.core.observability.statistics import ReplicaReport, merge
from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.core.server_metadata import EXTENSIONS, VERSION
from app.core.tensors import InferRequest
from app.dispatch.router import Router
from app.ingress.client_memory.registry import SharedMemory
from app.ingress.service.overview import Overview, Overviews
from app.ingress.service.peers import Peers
from app.ingress.service.replica_statistics import collect, collect_ensembles, statistics_message
from app.routing.manager_client import LoadRequest
from app.routing.refusals import unknown_text
from app.routing.table import ModelState, NotLoaded, RoutingTable, VersionEntry
from app.routing.waiting_room import WaitingCounts
from app.settings.settings import ServerSettings
from app.transport.channel.client import Channel

if TYPE_CHECKING:
    from app.core.cost.report import Report
    from app.tape.browsing import TapeBrowser

_NO_TAPE: Final = (
    "feedback is joined with recorded requests, and this server records none: start it with --tape=DIRECTORY"
)
_NO_REPLICA: Final = "no replica of the model can be reached"


class Repository(Protocol):
    """The repository manager as an ingress calls it; each method may raise `InferError`."""

    async def index(self) -> list[tuple[str, str, str, str]]: ...

    async def load(self, asked: LoadRequest) -> None: ...

    async def registered(self) -> dict[str, str]: ...

    async def unload(self, name: str, unload_dependents: bool, *, who: str = "") -> None: ...

    async def rollout(self, name: str) -> RolloutStatus: ...

    async def change_rollout(self, name: str, change: RolloutChange, who: str) -> RolloutStatus: ...

    async def rollout_history(self, name: str) -> RolloutHistory: ...

    async def drift(self, name: str, version: str) -> DriftStatus: ...


class FeedbackKeeper(Protocol):
    """Keeps feedback on answers; `keep` and `figures` may raise `InferError`."""

    async def keep(self, model: str, version: str, records: Sequence[Feedback]) -> None: ...

    async def figures(self, model: str) -> FeedbackFigures: ...

    async def reading(self) -> Mapping[str, FeedbackFigures]:
        """Return the figures of this node by model; empty where they cannot be read."""

    async def slots(self, after: int, models: Sequence[str], since: int) -> list[SlotScores]:
        """Return scores that changed after the change of this number, of the minutes since `since`."""

    async def run(self) -> None:
        """Join feedback with the tape for ever."""

    def close(self) -> None:
        """End what was begun."""


class Serving(NamedTuple):
    """A version, as an ingress reaches it.

    Attributes:
        available: whether a request would be accepted now.
        replicas: number of replicas on this node that are ready.
        losses: number of replicas lost, on any node, by how they ended.
    """

    available: bool
    replicas: int
    losses: dict[str, int]


class RoutedInferenceService:
    """Implements `InferenceService` over a `Router`. Runs on the data-plane loop."""

    def __init__(
        self,
        settings: ServerSettings,
        router: Router,
        repository: Repository,
        shared_memory: SharedMemory | None = None,
        keeper: FeedbackKeeper | None = None,
        browser: "TapeBrowser | None" = None,
    ) -> None:
        """Without `shared_memory` clients cannot share any; without a `keeper` they cannot give feedback.

        Without a `browser` nobody sees recorded requests.
        """
        self.shared_memory = shared_memory or SharedMemory("", enabled=False)
        self._settings = settings
        self._router = router
        self._default_deadline_s = settings.ingress.default_deadline_s
        self._repository = repository
        self.ensembles = router.ensembles
        self.rollouts = router.rollouts
        self.peers: Peers | None = None
        self.keeper = keeper
        self._overviews = Overviews(self)
        self._browser = browser
        self._exiting = False
        self.cluster_fault = ""
        """What is wrong with the cluster that makes the server not ready; "" for nothing."""

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        return self._router.table.resolve(name, version)

    def resolve_single(self, name: str, version: str, endpoint: str) -> VersionEntry:
        entry = self._router.table.resolve(name, version)
        if entry.decoupled:
            raise unsupported(f"{endpoint} doesn't support models with decoupled transaction policy")
        return entry

    async def wait_loaded(self, entry: VersionEntry) -> None:
        await self._router.wait_loaded(entry)

    def live(self) -> bool:
        return not self._exiting and not self._router.table.failed

    def exiting(self) -> bool:
        return self._exiting

    def begin_exit(self) -> None:
        """Report not ready from now on; requests are still served."""
        self._exiting = True

    def ready(self) -> bool:
        table = self._router.table
        if self._exiting or self.cluster_fault or not table.initialised:
            return False
        repository = self._settings.repository
        if repository.exit_on_error and not table.all_loaded:  # the program is about to exit
            return False
        if not repository.strict_readiness:
            return True
        return table.all_ready and all(map(self._router.available, table.ready))

    def model_ready(self, name: str, version: str = "") -> bool:
        try:
            return not self._exiting and self._router.available(self.resolve(name, version))
        except NotLoaded as idle:
            return self.available(idle.entry)
        except InferError as error:
            table = self._router.table
            if self._known(name, version) or not (table.initialised or table.failed):
                return False
            raise error

    def server_metadata(self) -> pb.ServerMetadataResponse:
        name = self._settings.server.id
        return pb.ServerMetadataResponse(name=name, version=VERSION, extensions=EXTENSIONS)

    def model_metadata(self, name: str, version: str = "") -> pb.ModelMetadataResponse:
        entry = self.resolve(name, version)
        config = entry.model_config
        versions = [entry.version] if version else self._router.table.ready_versions(entry.name)
        message = pb.ModelMetadataResponse(
            name=entry.model, versions=map(str, versions), platform=config.platform or config.backend
        )
        for target, specs in ((message.inputs, input_specs(config)), (message.outputs, output_specs(config))):
            for spec in specs:
                target.add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
        return message

    async def statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse:
        entries = self._statistics_entries(name, version)
        found = (statistics_message(entry, report) for entry, report in await self.reports(entries))
        return pb.ModelStatisticsResponse(model_stats=found)

    async def counters(self, name: str, version: str = "") -> list[tuple[VersionEntry, ReplicaReport]]:
        return await self.reports(self._statistics_entries(name, version))

    async def reports(
        self, entries: list[VersionEntry], local: bool = False
    ) -> list[tuple[VersionEntry, ReplicaReport]]:
        """Return the counters of some versions over all replicas, with `local` over those of this node.

        An ensemble is counted in ingresses, and in replicas whose models called it. Models come first.
        """
        models = [entry for entry in entries if not entry.ensemble]
        ensembles = [entry for entry in entries if entry.ensemble]
        answers, elsewhere = await asyncio.gather(
            asyncio.gather(*(collect(self._channels(entry, local)) for entry in models)),
            self._ensembles_elsewhere(local) if ensembles else _none(),
        )
        found = [(entry, merge(answer)) for entry, answer in zip(models, answers, strict=True)]
        for entry in ensembles:
            others = elsewhere.get((entry.name, entry.version), ())
            found.append((entry, merge([self.ensembles.report(entry), *others])))
        return found

    def _channels(self, entry: VersionEntry, local: bool) -> list[Channel]:
        if not entry.application:  # an idle version has no replicas
            return []
        pool = self._router.pool(entry)
        return pool.local_channels() if local else pool.channels

    async def _ensembles_elsewhere(self, local: bool) -> dict[tuple[str, int], list[ReplicaReport]]:
        channels = self.peers.channels(local) if self.peers is not None else []
        for entry in self.served():
            if entry.makes_calls:
                channels += self._channels(entry, local)
        return await collect_ensembles(channels)

    def available(self, entry: VersionEntry) -> bool:
        """Return whether a request to this version would be accepted here now."""
        return not self._exiting and self._router.available(entry)

    def serving(self, entry: VersionEntry) -> Serving:
        """Return how this ingress reaches the replicas of a version; an ensemble has none."""
        if entry.ensemble:
            return Serving(self.available(entry), 0, {})
        pool = self._router.pool(entry)
        ready = sum(channel.ready for channel in pool.local_channels())
        return Serving(self.available(entry), ready, dict(pool.losses))

    def known(self) -> list[VersionEntry]:
        """Return every version in whatever state, without those that were unloaded by request."""
        return [entry for entry in self._router.table.entries if not entry.unloaded_by_request]

    @property
    def waiting(self) -> WaitingCounts:
        """What waits for a replica here."""
        return WaitingCounts() if self._router.waiting is None else self._router.waiting.counts

    def served(self) -> list[VersionEntry]:
        """Return the READY versions, by name and version."""
        return list(self._router.table.ready)

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        response = pb.RepositoryIndexResponse()
        for name, version, state, reason in await self._repository.index():
            if state == ModelState.READY.value:
                state, reason = self._observed(name, int(version), reason)
            if not ready or state == ModelState.READY.value:
                response.models.add(name=name, version=version, state=state, reason=reason)
        return response

    async def overview(self, cursor: str) -> Overview:
        return await self._overviews.since(cursor)

    @property
    def table(self) -> RoutingTable:
        """The newest table, by which requests are routed."""
        return self._router.table

    async def index(self) -> list[tuple[str, str, str, str]]:
        """Return name, version, state and reason of every version as the manager knows them."""
        return await self._repository.index()

    def observed(self, entry: VersionEntry) -> tuple[str, str, int]:
        """Return state and reason of a version as found here, and the number of replicas that answer."""
        if entry.state is not ModelState.READY:
            return entry.state.value, entry.reason, 0
        state, reason = self._observed(entry.name, entry.version, entry.reason)
        return state, reason, sum(channel.ready for channel in self._channels(entry, local=False))

    async def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], who: str = ""
    ) -> None:
        if files and not self._settings.repository.allow_upload:
            text = "files in load requests are not accepted, as --allow-model-upload is false"
            raise unsupported(f"failed to load '{name}', {text}")
        await self._repository.load(LoadRequest(name, config, files, who=who))

    async def unload_model(self, name: str, unload_dependents: bool = False, who: str = "") -> None:
        await self._repository.unload(name, unload_dependents, who=who)

    async def register_model(self, name: str, directory: str, who: str = "") -> None:
        await self._repository.load(LoadRequest(name, directory=directory, who=who))

    async def registered_models(self) -> dict[str, str]:
        return await self._repository.registered()

    async def rollout(self, name: str) -> RolloutStatus:
        return await self._repository.rollout(name)

    async def change_rollout(self, name: str, change: RolloutChange, who: str = ANONYMOUS) -> RolloutStatus:
        if who == ANONYMOUS and change.user:  # nobody has checked it
            who = "".join(letter for letter in f"user {change.user}" if letter.isprintable())
        return await self._repository.change_rollout(name, change, who)

    async def rollout_history(self, name: str) -> RolloutHistory:
        return await self._repository.rollout_history(name)

    async def drift(self, name: str, version: str = "") -> DriftStatus:
        return await self._repository.drift(name, version)

    async def cost(
        self, since: float, by: Sequence[str], permits: Callable[[str], bool] | None = None
    ) -> "Report":
        from app.ingress.service.bill import bill  # which few servers are ever asked for

        return await asyncio.to_thread(bill, self._settings, since, by, permits)

    def tape(self) -> "TapeBrowser":
        if self._browser is None:
            raise unsupported("this server records no requests: start it with --tape=DIRECTORY")
        return self._browser

    def tap_anew(self) -> None:
        """Have the router ask its tap again: what is recorded has changed."""
        self._router.tap_anew()

    async def feedback(self, name: str, version: str, records: Sequence[Feedback]) -> None:
        keeper = self._feedback_keeper(name)
        parse_version(version)
        await keeper.keep(name, version, records)

    async def feedback_figures(self, name: str) -> FeedbackFigures:
        return await self._feedback_keeper(name).figures(name)

    def _feedback_keeper(self, name: str) -> FeedbackKeeper:
        if self.keeper is None:
            raise unsupported(_NO_TAPE)
        if self._router.table.versions(name) is None:
            raise not_found(unknown_text(name))
        return self.keeper

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        if self._default_deadline_s and not request.deadline:
            request = msgspec.structs.replace(request, deadline=monotonic() + self._default_deadline_s)
        if request.regions:
            return self.shared_memory.send(entry.target, request, sink)
        return entry.target.submit(request, sink)

    def _observed(self, name: str, version: int, reason: str) -> tuple[str, str]:
        """Return state and reason of a version that the manager calls READY, as this ingress finds it."""
        entry = self._router.table.by_name.get(name, {}).get(version)
        if entry is None or self._router.available(entry):
            return ModelState.READY.value, reason
        return ModelState.UNAVAILABLE.value, self._router.trouble(entry) or reason or _NO_REPLICA

    def _known(self, name: str, version: str) -> bool:
        versions = self._router.table.versions(name)
        return versions is not None and (not version or any(str(v) == version for v in versions))

    def _statistics_entries(self, name: str, version: str) -> list[VersionEntry]:
        if not name:
            self._router.table.require_started()
            return self.served()
        wanted = parse_version(version)
        table = self._router.table
        versions = table.versions(name) or {}
        ready = table.ready_versions(name)
        if not ready:
            raise invalid_arg(f"requested model '{name}' is not available")
        if wanted is not None and wanted not in ready:
            raise invalid_arg(f"requested model version is not available for model '{name}'")
        return [versions[v] for v in ready if wanted in (None, v)]


async def _none() -> dict[tuple[str, int], list[ReplicaReport]]:
    return {}
