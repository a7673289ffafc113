"""Records requests of a version on their way to its target, or lets them pass."""

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import blake2b
from random import random
from time import monotonic_ns, time_ns
from typing import Final, Literal

from app.core.errors import Failure
from app.core.inference import Call, Sink, Target
from app.core.tape.slowness import slowness
from app.core.tensors import InferRequest, InferResponse
from app.tape.counts import FAULT, TapeCounts
from app.tape.queue import TapeQueue
from app.tape.taken import Rules, Taken
from nereid_client.tape.rows import TRUNCATED

logger = logging.getLogger(__name__)

Reason = Literal["", "rate", "sequence"]
_SEQUENCES: Final = 4096


class Recorder:
    """What the versions of a process have in common that are recorded.

    Args:
        queue: takes the rows.
        counts: counts what is dropped.
        secret: chooses sequences; all ingresses of a server have the same.
        token: returns the name of the client's token.
    """

    def __init__(
        self, queue: TapeQueue, counts: TapeCounts, secret: bytes = b"", token: Callable[[], str] = str
    ) -> None:
        self.queue, self.token = queue, token
        self._counts, self._secret = counts, secret[:64]
        self.has_sequence = lru_cache(_SEQUENCES)(self._has_sequence)

    def _has_sequence(self, model: str, sequence_id: int | str, rate: float) -> bool:
        """Return whether a sequence is recorded: all ingresses say the same, and no client can tell."""
        name = f"{model}\0{sequence_id!r}".encode(errors="surrogatepass")
        digest = blake2b(name, digest_size=8, key=self._secret).digest()
        return int.from_bytes(digest, "little") < rate * 2.0**64

    def failed(self) -> None:
        """Count a row that could not be made; the first one is logged."""
        if not self._counts.refused[FAULT]:
            logger.exception("a request could not be recorded; more like this are only counted")
        self._counts.refused[FAULT] += 1


class Tapped:
    """A target whose requests are recorded, some of them.

    Args:
        recorder: of the process.
        rules: of the model; they have a rate.
        decoupled: whether a request may have several responses.
        target: answers the requests.
    """

    def __init__(self, recorder: Recorder, rules: Rules, decoupled: bool, target: Target) -> None:
        spec = rules.spec
        self.recorder, self.rules = recorder, rules
        self._target, self._submit = target, target.submit
        self._rate, self._steps, self._decoupled = spec.rate or 0.0, spec.steps, decoupled
        self._token, self._put_plain = recorder.token, recorder.queue.put_plain
        self.errors, self.is_slow = spec.errors, slowness(spec.slow)
        self._watches = self.errors or self.is_slow is not None

    @property
    def available(self) -> bool:
        """As `Target.available`."""
        return self._target.available

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """As `Target.submit`."""
        if request.chain and not self._steps:
            return self._submit(request, sink)
        chosen: Reason = ""
        if request.sequence_id:
            if self.recorder.has_sequence(self.rules.model, request.sequence_id, self._rate):
                chosen = "sequence"
        elif random() < self._rate:
            chosen = "rate"
        # Memory of the client may have to be read before the response, and many responses are collected.
        if not (self._decoupled or (chosen and (request.regions or request.sequence_id))):
            if not chosen and not self._watches:
                return self._submit(request, sink)
            arrived, token = monotonic_ns(), self._token()
            receive = self._keep if chosen else self._watch
            try:
                return self._submit(request, partial(receive, request, sink, arrived, token))
            except Exception as error:
                Recording(self, request, sink, chosen, arrived, token).refused(error)
                raise
        recording = Recording(self, request, sink, chosen)
        try:
            return self._submit(request, recording.receive)
        except Exception as error:
            recording.refused(error)
            raise

    def _watch(
        self, request: InferRequest, sink: Sink, arrived: int, token: str, response: InferResponse
    ) -> None:
        is_slow = self.is_slow
        if response.failure is None and (is_slow is None or not is_slow(monotonic_ns() - arrived)):
            sink(response)
        else:
            recording = Recording(self, request, sink, "", arrived, token)
            recording.slow = response.failure is None
            recording.receive(response)

    def _keep(
        self, request: InferRequest, sink: Sink, arrived: int, token: str, response: InferResponse
    ) -> None:
        """Record a request that was chosen at random."""
        try:
            put = self.is_slow is None and self._put_plain(self.rules, request, response, arrived, token)
        except Exception:
            self.recorder.failed()
            put = True
        if put:
            sink(response)
        else:
            Recording(self, request, sink, "rate", arrived, token).receive(response)


class Recording:
    """A request that is recorded once it has been answered: as chosen, or for what its answer is.

    Args:
        tapped: of its version.
        request: the request.
        sink: gets its responses.
        chosen: why it is recorded whatever its answer is; "" if it is not.
        arrived: `monotonic_ns` of its arrival; 0 for now.
        token: name of the client's token; None for that of the present context.

    Attributes:
        slow: it is known to be slow; None before that is known.
    """

    __slots__ = ("_chosen", "_failed", "_request", "_sink", "_taken", "_tapped", "slow")

    def __init__(
        self,
        tapped: Tapped,
        request: InferRequest,
        sink: Sink,
        chosen: Reason,
        arrived: int = 0,
        token: str | None = None,
    ) -> None:
        self._tapped, self._request, self._sink, self._chosen = tapped, request, sink, chosen
        self.slow: bool | None = None
        self._failed = False
        name = tapped.recorder.token() if token is None else token
        self._taken: Taken | None = None
        try:
            self._taken = Taken(tapped.rules, request, arrived or monotonic_ns(), name)
        except Exception:
            tapped.recorder.failed()

    def receive(self, response: InferResponse) -> None:
        """Pass a response on; before that, take what is recorded of it."""
        taken = self._taken
        if taken is not None:
            try:
                self._take(taken, response)
            except Exception:
                self._taken = None
                self._give_back(taken)
                self._tapped.recorder.failed()
        self._sink(response)

    def refused(self, error: Exception) -> None:
        """Record a request that could not be submitted."""
        taken = self._taken
        if taken is not None and (self._chosen or self._tapped.errors):
            try:
                self._take(taken, InferResponse(failure=Failure.from_exception(error)))
            except Exception:
                self._give_back(taken)
                self._tapped.recorder.failed()

    def _take(self, taken: Taken, response: InferResponse) -> None:
        queue, now = self._tapped.recorder.queue, monotonic_ns()
        failed = response.failure is not None
        self._failed = self._failed or failed
        # Of what is not chosen only what fails is kept: a stream may be long, and few fail.
        if (self._chosen and not queue.full) or failed or response.final:
            queue.collected += taken.add(now - taken.arrived, response, self._request)
        else:
            taken.flags.add(TRUNCATED)
        if response.final:
            self._give_back(taken)
            self._finish(taken, now)

    def _give_back(self, taken: Taken) -> None:
        """Count the bytes of its responses no more as those of a request in flight."""
        self._tapped.recorder.queue.collected -= taken.collected
        taken.collected = 0

    def _finish(self, taken: Taken, now: int) -> None:
        """Queue a request that has had its last response, if it is to be recorded."""
        tapped = self._tapped
        slow = self.slow
        if slow is None:
            slow = tapped.is_slow is not None and tapped.is_slow(now - taken.arrived)
        if self._failed and tapped.errors:
            taken.reason = "error"
        elif slow:
            taken.reason = "slow"
        elif self._chosen:
            taken.reason, taken.probability = self._chosen, tapped.rules.spec.rate or 0.0
        else:
            return
        taken.read_inputs()
        taken.wall_ns = time_ns() - (now - taken.arrived)
        taken.in_sequence = self._chosen == "sequence"
        tapped.recorder.queue.put(taken)
