"""HTTP, gRPC and metrics over an engine."""

from typing import TYPE_CHECKING

import msgspec

from app.core.observability.statistics import CustomFamily
from app.ingress.assembly import Serving
from app.settings.settings import ServerSettings
from backends.python.api import metrics

if TYPE_CHECKING:
    from nereid.engine.engine import Engine


class Fronts:
    """The listeners of a process; each is opened once.

    Args:
        engine: answers the requests.
        settings: addresses, ports, and which fronts are open; by default those of the engine.
    """

    def __init__(self, engine: "Engine", settings: ServerSettings | None = None) -> None:
        self._engine = engine
        self._settings = settings or engine.settings
        self._serving: Serving | None = None

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
        repository = self._engine.repository
        engine = self._engine
        self._serving = serving = Serving(
            self._settings,
            engine.service,
            repository.configure,
            tape=engine.tape,
            drift=engine.drift,
            cost=engine.cost,
        )
        repository.observers.append(serving.observer)
        await serving.open(custom=process_metrics)

    async def _stop(self, grace_s: float) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.stop(grace_s)
            self._engine.repository.observers.remove(serving.observer)
            await serving.close()


def process_metrics() -> list[CustomFamily]:
    """Return the custom metrics of the models of this process, and of the program around them."""
    return msgspec.convert(metrics.snapshot(), list[CustomFamily])
