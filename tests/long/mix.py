"""The load of the long suites: every kind of request there is, by several clients at once."""

import re
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from tests.long import hostile, inference, management, streams
from tests.long.client import Client
from tests.long.client_threads import ClientThreads
from tests.long.outcomes import Ledger, Refused, Wrong

_PAUSE_S: Final = 0.2


class Kind(NamedTuple):
    """A kind of request."""

    run: Callable[[Client], None]
    weight: float = 1.0
    again: str = "(?!)"
    """Errors that losing a server's process leads to, besides the transient ones; a pattern."""

    @property
    def name(self) -> str:
        return self.run.__name__


_LOST_SEQUENCE: Final = "must specify the START flag"
_LOST_REGION: Final = "Unable to find shared memory region|already in manager|nable to open shared memory"

KINDS: Final = (
    Kind(inference.batched, 8),
    Kind(inference.changed, 6),
    Kind(inference.chained, 6),
    Kind(inference.called, 3),
    Kind(inference.called_together, 3),
    Kind(inference.cached, 4),
    Kind(inference.reloaded, 3),
    Kind(inference.typed, 3),
    Kind(inference.texts, 3),
    Kind(inference.shared, 3, _LOST_REGION),
    Kind(inference.timed, 1),
    Kind(inference.described, 0.3),
    Kind(streams.repeated, 2),
    Kind(streams.given_up, 1),
    Kind(streams.streamed, 2),
    Kind(streams.generated, 2),
    Kind(streams.generated_once, 1),
    Kind(streams.totalled, 3, _LOST_SEQUENCE),
    Kind(streams.accumulated, 2, _LOST_SEQUENCE),
    Kind(streams.without_start, 0.3),
    Kind(hostile.left_while_asking, 2),
    Kind(hostile.left_while_answered, 3),
    Kind(hostile.left_events, 1),
    Kind(hostile.cut, 2),
    Kind(hostile.cancelled, 3),
    Kind(hostile.impatient, 3),
    Kind(hostile.lied, 2),
)
LEAK: Final = Kind(inference.leaked, 3)
MANAGEMENT: Final = (Kind(management.reload), Kind(management.come_and_go))


class Mix(ClientThreads):
    """Clients that send requests of random kinds, and those that load and unload, until they are stopped."""

    def __init__(
        self,
        http: str,
        grpc: str,
        ledger: Ledger,
        kinds: Iterable[Kind],
        clients: int = 6,
        managers: int = 1,
        retry_s: float = 0.0,
    ) -> None:
        """
        Args:
            http: address, `host:port`.
            grpc: likewise.
            ledger: takes what becomes of the requests.
            kinds: those to send.
            clients: how many send them, one request at a time.
            managers: how many take turns in `MANAGEMENT`.
            retry_s: how long clients try again what is refused for now.
        """
        self._addresses = http, grpc
        self._ledger = ledger
        self._retry_s = retry_s
        askers = [partial(self._infer, tuple(kinds), seed) for seed in range(clients)]
        super().__init__([*askers, *[self._manage] * managers], 120 + retry_s)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for _ in range(self.hanging):
            self._ledger.has_failed("client", "a request does not end", wrong=True)

    def _infer(self, kinds: tuple[Kind, ...], seed: int) -> None:
        client = Client(*self._addresses, seed)
        weights = [kind.weight for kind in kinds]
        while not self.stop.is_set():
            self.attempt(client, client.random.choices(kinds, weights)[0])
        client.close()

    def _manage(self) -> None:
        client = Client(*self._addresses, -1)
        while not self.stop.wait(client.random.uniform(2, 6)):
            self.attempt(client, client.random.choice(MANAGEMENT))
        client.close()

    def attempt(self, client: Client, kind: Kind) -> None:
        """Send one request, until it is answered or there is no hope that it will be."""
        started = time.monotonic()
        while not self._ended(client, kind, started):
            client.renew()
            time.sleep(_PAUSE_S)

    def _ended(self, client: Client, kind: Kind, started: float) -> bool:
        try:
            kind.run(client)
        except Refused as error:
            refusal = error.refusal
            again = refusal.transient or re.search(kind.again, refusal.text)
            if again and time.monotonic() - started < self._retry_s:
                self._ledger.was_retried(refusal)
                return False
            self._ledger.has_failed(kind.name, f"after {time.monotonic() - started:.1f} s {refusal}")
        except Wrong as error:
            self._ledger.has_failed(kind.name, f"WRONG {error}", wrong=True)
        except Exception:
            self._ledger.has_failed(kind.name, traceback.format_exc())
        else:
            self._ledger.came_right(kind.name, time.monotonic() - started)
        return True
