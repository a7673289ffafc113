"""What became of requests: right, perhaps not at the first try, or a failure that is described."""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Final, NamedTuple

import grpc
from geventhttpclient.response import HTTPParseError
from tritonclient.utils import InferenceServerException

NO_ANSWER: Final = "no answer"
_KEPT: Final = 40
_TRANSIENT: Final = re.compile(
    "connection to (its|model) replica lost|is not at ready state|stream is no longer in valid state"
    "|version [0-9]+ is loading|models are loading"
)


class Wrong(Exception):
    """An answer that is not the right one: no client may ever see it."""


class Refusal(NamedTuple):
    """An error as a client sees it: HTTP status, name of a gRPC status or NO_ANSWER, and the text."""

    status: str
    text: str

    @property
    def transient(self) -> bool:
        """Whether a client does well to try again: nobody could take the request, or its process died."""
        if self.status in ("503", "UNAVAILABLE", NO_ANSWER):
            return True
        # A stream carries texts alone.
        return not self.status and bool(_TRANSIENT.search(self.text))

    @property
    def kind(self) -> str:
        """Without what differs from request to request."""
        return f"{self.status}: {re.sub(r'[0-9]+', '#', self.text)[:160]}"


class Refused(Exception):
    """Raised where the server answers with an error, or does not answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


@contextmanager
def refusals() -> Iterator[None]:
    """Turn every error of tritonclient, grpc and sockets into `Refused`."""
    try:
        yield
    except InferenceServerException as error:
        status = (error.status() or "").removeprefix("StatusCode.")
        raise Refused(Refusal(status, error.message() or "")) from error
    except grpc.RpcError as error:
        raise Refused(Refusal(error.code().name, error.details())) from error
    except (OSError, HTTPException, HTTPParseError) as error:
        raise Refused(Refusal(NO_ANSWER, repr(error))) from error


class Ledger:
    """What the requests of a run came to, by kind. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.right: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.failures: list[str] = []
        """The first of them, in words."""
        self.wrong: list[str] = []
        """Of those not one is forgiven."""
        self.slowest: dict[str, float] = {}

    @property
    def total(self) -> int:
        """Requests, each counted once however often it was tried."""
        return self.right.total() + self.failed.total()

    @property
    def success(self) -> float:
        """The share of requests that came out as they should."""
        return 1 - self.failed.total() / max(self.total, 1)

    def came_right(self, kind: str, seconds: float) -> None:
        """A request was answered as it should be, so long after its first try."""
        with self._lock:
            self.right[kind] += 1
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), seconds)

    def was_retried(self, refusal: Refusal) -> None:
        """A request was refused for now."""
        with self._lock:
            self.retried[refusal.kind] += 1

    def has_failed(self, kind: str, what: str, wrong: bool = False) -> None:
        """A request ended as few may, or as none may (`wrong`)."""
        line = f"{time.strftime('%H:%M:%S')} {kind}: {what}"
        with self._lock:
            self.failed[kind] += 1
            for kept in (self.failures, self.wrong) if wrong else (self.failures,):
                if len(kept) < _KEPT:
                    kept.append(line)

    def lines(self) -> Iterator[str]:
        """The run in words."""
        yield f"{self.total} requests, {self.failed.total()} failures, success {self.success:.5f}"
        for kind in sorted({*self.right, *self.failed}):
            slowest = self.slowest.get(kind, 0.0)
            right, failed = self.right[kind], self.failed[kind]
            yield f"  {kind:28} {right:7} right {failed:4} failed, slowest {slowest:.1f} s"
        for text, count in self.retried.most_common(20):
            yield f"  tried again {count:7} times after {text}"
        yield from (f"  FAILED {failure}" for failure in dict.fromkeys((*self.failures, *self.wrong)))
