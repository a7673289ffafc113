"""The models in memory: their bytes, their last use, and room for others within a budget."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, NamedTuple

from app.core.errors import InferError, unavailable
from app.core.residency import ReplicaUse, ResidencyReport, UseReport
from deployments.residency.eviction import Resident, plan_evictions, together
from deployments.spec import ModelSpec

logger = logging.getLogger(__name__)

SETTLE_S: Final = 3.0
"""Time for the requests that wait for a load to reach the replica, and for its use to be reported."""
PATIENCE_S: Final = 30.0
"""How long a load waits for others to become idle."""
_STALE_S: Final = 15.0
"""Age at which a report no longer counts: its ingress is gone."""
_SMALLEST: Final = 64 << 20
"""Bytes of a replica without a model, until one was measured."""
_GROWTH: Final = 1.5
"""Memory of a loaded model to the size of its files, until it was measured."""


class Kept(NamedTuple):
    """The models that must stay in memory, as the manager knows.

    Attributes:
        models: why each such model must, by identifier.
        ensembles: the models that each ensemble calls.
    """

    models: Mapping[str, str] = {}
    ensembles: Collection[Collection[str]] = ()


class _Use(NamedTuple):
    use: ReplicaUse
    at: float


class Residency:
    """Knows what is in memory, and evicts models when others need their place.

    Args:
        budget: bytes for all models; 0 for no limit, and nothing is done then.
        served: returns the specs of the deployed versions, by application.
        kept: returns what must not be evicted.
        evict: takes a model out of service, and returns when its processes have ended.
        clock: seconds.
    """

    def __init__(
        self,
        budget: int,
        served: Callable[[], Mapping[str, ModelSpec]],
        kept: Callable[[], Kept],
        evict: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.budget = budget
        self._served = served
        self._kept = kept
        self._evict = evict
        self._clock = clock
        self._uses: dict[tuple[str, str], _Use] = {}
        """By application and replica."""
        self._sizes: dict[tuple[str, int], int] = {}
        """The measured bytes of each version, also when it was evicted since."""
        self._guesses: dict[tuple[str, int], int] = {}
        """What was expected of the versions that were loaded, until they are measured."""
        self._loaded_at: dict[str, float] = {}
        self._loading: dict[object, tuple[str, int]] = {}
        """The model of each load, and the bytes it is expected to need."""
        self._handed_over: dict[tuple[str, int], int] = {}
        """The bytes of versions that have just loaded, until `served` has them."""
        self._leaving: dict[str, float] = {}
        """The models that are being evicted, and when they were used last."""
        self._planning = asyncio.Lock()
        self._changed = asyncio.Event()
        self._trimming: asyncio.Task[None] | None = None
        self._evicted = 0
        self._evicted_age_s: float | None = None

    @asynccontextmanager
    async def room(self, name: str, version: int, file_bytes: int) -> AsyncIterator[None]:
        """Hold room for the load of a version; evict others for it.

        Args:
            name: the model's identifier.
            version: its version.
            file_bytes: the size of its files.

        Raises:
            InferError: UNAVAILABLE when there is none, as what is in memory cannot be evicted.
        """
        if not self.budget:
            yield
            return
        load = object()
        nbytes = self._guesses[name, version] = self._estimate((name, version), file_bytes)
        await self._make_room(load, name, nbytes)
        try:
            yield
        finally:
            del self._loading[load]
            self._handed_over[name, version] = nbytes
            self._loaded_at[name] = self._clock()
            self._changed.set()

    def report(self, uses: UseReport) -> None:
        """Record what the replicas of a node use; evict models where they have grown beyond the budget."""
        now = self._clock()
        served = self._served()
        for application, use in uses:
            if application in served:
                self._uses[application, use.replica] = _Use(use, now)
        self._uses = {
            key: known for key, known in self._uses.items() if key[0] in served and now - known.at < _STALE_S
        }
        for application in {key[0] for key in self._uses}:
            spec = served[application]
            self._sizes[spec.identifier, spec.version] = self._measured(application)
            self._guesses.pop((spec.identifier, spec.version), None)
        self._changed.set()
        if self._excess(self._residents()) > 0 and (self._trimming is None or self._trimming.done()):
            self._trimming = asyncio.create_task(self._trim())

    def summary(self, registered: int, demanded: int, failed: int) -> ResidencyReport:
        """Return the figures for metrics; see `ResidencyReport`."""
        residents = self._residents()
        used = sum(model.nbytes for model in residents) + self._expected
        return ResidencyReport(
            self.budget,
            used,
            len(residents),
            registered,
            demanded,
            failed,
            self._evicted,
            self._evicted_age_s,
        )

    @property
    def _expected(self) -> int:
        """The bytes of loads, and of versions that have loaded or failed and are not served yet."""
        served = {(spec.identifier, spec.version) for spec in self._served().values()}
        now = self._clock()
        for key in list(self._handed_over):
            if key in served or now - self._loaded_at[key[0]] >= SETTLE_S:
                del self._handed_over[key]
        return sum(nbytes for _, nbytes in self._loading.values()) + sum(self._handed_over.values())

    def _measured(self, application: str) -> int:
        return sum(known.use.nbytes for key, known in self._uses.items() if key[0] == application)

    def _estimate(self, key: tuple[str, int], file_bytes: int) -> int:
        """Return the expected bytes of a version: as before, or by its files and the smallest replica."""
        smallest = min(self._sizes.values(), default=_SMALLEST)
        return self._sizes.get(key) or int(file_bytes * _GROWTH) + smallest

    def _residents(self) -> list[Resident]:
        """Return the models in memory, without those that are being evicted."""
        loading = {name for name, _ in self._loading.values()}
        kept = self._kept()
        applications: dict[str, list[str]] = {}
        for application, spec in self._served().items():
            applications.setdefault(spec.identifier, []).append(application)
        found = []
        for name, its in applications.items():
            if name in self._leaving:
                continue
            uses = [known for key, known in self._uses.items() if key[0] in its]
            why = kept.models.get(name) or ("is loading" if name in loading else self._in_use(name, uses))
            nbytes = sum(self._size(application) for application in its)
            found.append(Resident(name, nbytes, self._used_at(name, uses), why))
        return together(found, kept.ensembles)

    def _size(self, application: str) -> int:
        spec = self._served()[application]
        key = spec.identifier, spec.version
        return self._sizes.get(key) or self._guesses.get(key, _SMALLEST)

    def _used_at(self, name: str, uses: Collection[_Use]) -> float:
        reported = max((known.at - known.use.idle_s for known in uses), default=0.0)
        return max(reported, self._loaded_at.setdefault(name, self._clock()))

    def _in_use(self, name: str, uses: Collection[_Use]) -> str:
        """Return why a model cannot be evicted now by its use; "" if it can."""
        if any(known.use.sequences for known in uses):
            return "has sequences"
        if self._clock() - self._loaded_at.setdefault(name, self._clock()) < SETTLE_S:
            return "was just loaded"
        return "is in use" if any(not known.use.idle_s for known in uses) else ""

    def _excess(self, residents: Collection[Resident], more: int = 0) -> int:
        return sum(model.nbytes for model in residents) + self._expected + more - self.budget

    async def _make_room(self, load: object, name: str, nbytes: int) -> None:
        if nbytes > self.budget:
            raise _no_room(name, f"it needs about {nbytes} bytes, more than --model-memory-bytes")
        async with self._planning:
            names = await self._find_room(name, nbytes)
            self._loading[load] = name, nbytes
            self._mark_leaving(names)
        try:
            await self._evict_all(names)
        except BaseException:
            del self._loading[load]
            raise

    async def _find_room(self, name: str, nbytes: int) -> tuple[str, ...]:
        """Return the models to evict; wait until there are enough of them.

        Raises:
            InferError: UNAVAILABLE when there are not after `PATIENCE_S`.
        """
        until = self._clock() + PATIENCE_S
        while True:
            residents = self._residents()
            others = [model for model in residents if model.name != name]  # it may be loaded anew
            plan = plan_evictions(others, self._excess(residents, nbytes))
            if not plan.missing:
                return plan.names
            if self._clock() >= until:
                kept = sorted({model.kept for model in residents if model.kept})
                why = (
                    f"it needs {plan.missing} bytes more than other models can give: each {' or '.join(kept)}"
                )
                raise _no_room(name, why)
            self._changed.clear()
            try:
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _trim(self) -> None:
        """Evict models while those in memory have more bytes than the budget, as far as they can be."""
        async with self._planning:
            residents = self._residents()
            excess = self._excess(residents)
            plan = plan_evictions(residents, excess)
            if plan.missing:
                logger.warning("models use %d bytes more than --model-memory-bytes", excess)
            self._mark_leaving(plan.names)
        await self._evict_all(plan.names)

    def _mark_leaving(self, names: Collection[str]) -> None:
        used = {model.name: model.used_at for model in self._residents()}
        self._leaving.update({name: used[name] for name in names})

    async def _evict_all(self, names: Collection[str]) -> None:
        await asyncio.gather(*(self._evict_one(name) for name in names))

    async def _evict_one(self, name: str) -> None:
        try:
            age_s = self._clock() - self._leaving[name]
            logger.info("evicting '%s', which was used %.0f s ago", name, age_s)
            await self._evict(name)
            self._evicted += 1
            self._evicted_age_s = age_s
        except Exception as error:
            logger.error("evicting '%s': %r", name, error)
        finally:
            del self._leaving[name]
            self._loaded_at.pop(name, None)
            self._changed.set()


def _no_room(name: str, why: str) -> InferError:
    return unavailable(f"there is no room in memory for model '{name}': {why}")
