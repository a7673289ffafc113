"""Growing pauses before a replica starts whose predecessors ended unexpectedly, one soon after the other.

Serve starts a replica in place of a lost one at once; a model that ends its process at each request would be
loaded without a break.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from app.core.encoding import to_msgpack
from app.core.system.pauses import growing_pause
from app.ray_adapter import store
from app.ray_adapter.serve.handles import connect, new_handle
from deployments.spec import MANAGER, ModelSpec

logger = logging.getLogger(__name__)

STABLE_S: Final = 60.0
"""After so long a service, an unexpected end counts as the first."""
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_ANSWER_S: Final = 5.0


class Run(msgspec.Struct, frozen=True):
    """The record of a replica that runs.

    Attributes:
        crashes: unexpected ends in a row before it.
        served_from: when its model was loaded, in seconds since the epoch; 0 before.
        ended: all unexpected ends before it.
    """

    crashes: int = 0
    served_from: float = 0.0
    ended: int = 0


def next_run(previous: Run | None, now: float) -> Run:
    """Return the run of a replica that starts; `previous` is one at its place that did not end in order."""
    if previous is None:
        return Run()
    stable = previous.served_from and now - previous.served_from > STABLE_S
    return Run(1 if stable else previous.crashes + 1, ended=previous.ended + 1)


def pause(crashes: int) -> float:
    """Return the seconds until a start after so many unexpected ends: 0, 0, 1, 2, 4, ... 60."""
    return growing_pause(crashes - 1, _FIRST_S, _LONGEST_S)


class Restarts:
    """The runs of the replicas at one place of a model version.

    Args:
        spec: the model version.
        rank: the place of this replica among those of the version, which a replica in its stead takes over.
    """

    def __init__(
        self,
        spec: ModelSpec,
        rank: int,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._sleep = sleep
        self._key = f"run/{spec.application}/{spec.loaded_at}/{rank}"
        self._run = Run()

    @property
    def count(self) -> int:
        """Unexpected ends of replicas at this place, since the version was loaded."""
        return self._run.ended

    def wait(self) -> None:
        """Note that the replica starts; block while it has to wait for that."""
        found = store.read(self._key)
        previous = msgspec.msgpack.decode(found, type=Run) if found is not None else None
        self._run = next_run(previous, self._clock())
        self._write()
        self._pause()

    def again(self) -> int:
        """Note that the replica's own process starts again; block as `wait` does.

        Needs nothing of the cluster, whose head may be away.

        Returns:
            All unexpected ends so far.
        """
        self._run = next_run(self._run, self._clock())
        self._write_soon()
        self._pause()
        return self.count

    def _pause(self) -> None:
        if seconds := pause(self._run.crashes):
            text = (
                f"ended unexpectedly {self._run.crashes} times in a row; it is started again in {seconds:g} s"
            )
            logger.warning("a replica of model '%s' %s", self._spec.name, text)
            self._tell(f"a replica has {text}")
            self._sleep(seconds)

    def loaded(self) -> None:
        """Note that the model serves."""
        self._run = msgspec.structs.replace(self._run, served_from=self._clock())
        self._write()
        self._tell_served()

    def loaded_again(self) -> None:
        """Note that the model serves after `again`."""
        self._run = msgspec.structs.replace(self._run, served_from=self._clock())
        self._write_soon()
        self._tell_served()

    def _tell_served(self) -> None:
        if pause(self._run.crashes):
            self._tell("")

    def ended(self) -> None:
        """Note that the replica ends in order."""
        store.remove(self._key)

    def _write(self) -> None:
        store.write(self._key, to_msgpack(self._run))

    def _write_soon(self) -> None:
        """Write on another thread, which may wait for the cluster's head."""
        threading.Thread(target=self._write, name="restarts", daemon=True).start()

    def _tell(self, reason: str) -> None:
        with ThreadPoolExecutor(1) as thread:  # `result` of a handle must not be called on Serve's own loop
            thread.submit(_tell_manager, self._spec, reason)


def _tell_manager(spec: ModelSpec, reason: str) -> None:
    manager: Any = new_handle(MANAGER, spec.manager)
    try:
        connect(manager)
        manager.explain.remote(spec.application, reason).result(timeout_s=_ANSWER_S)
    except Exception as error:
        logger.warning("the repository manager does not answer: %r", error)
    finally:
        manager.shutdown()
