"""Delivers responses of C++ backends: events of the compiled library, to the requests they belong to.

An execution returns its events. What comes later, and every response of a decoupled model, comes through a
queue in the library: its descriptor wakes the one thread of this module. No thread of a backend calls Python.
"""

import ctypes
import itertools
import logging
import os
import select
import threading
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any, Final

import msgspec

from app.core.buffers import allocate
from app.core.errors import internal
from app.core.observability.statistics import record_response
from app.core.tensors import InferResponse, Tensor, failed
from backends.base import Model, Request
from backends.cpp.calls import ModelCalls
from backends.cpp.library import failure_of, read, shim
from backends.cpp.requests import address_of

logger = logging.getLogger(__name__)

RESPONSE, CLOSED, RESCHEDULED, STATE, LOG, ACTIVITY, WATCH, CALL, CANCEL, QUESTION, TIMED = range(11)

_CANCEL_POLL_MS: Final = 20
"""How often a request whose backend asks whether it is cancelled is looked at."""
_LEVELS: Final = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
"""By the numbers of TRITONSERVER_LogLevel."""
_ABANDONED: Final = "model '{}' released this request without a final response"


class _Pending:
    """A request that a backend has, by its token; `arena` is memory that its outputs may lie in."""

    __slots__ = ("arena", "model", "request", "states")

    def __init__(self, request: Request, model: Model, arena: memoryview | None) -> None:
        self.request = request
        self.model = model
        self.arena = arena
        self.states: list[Tensor] = []


class Events:
    """The requests that backends of this process have, and the thread that waits for late events."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}
        self._watched: set[int] = set()
        self._tokens = itertools.count(1)
        self._lock = threading.Lock()
        self._levels = -1
        self._calls = ModelCalls()
        self._descriptor = shim().nereid_descriptor()
        threading.Thread(target=self._wait, name="C++ backends", daemon=True).start()

    def register(self, requests: Sequence[Request], model: Model, arena: memoryview | None) -> range:
        """Return a token for each request of a batch; they are numbers that follow each other."""
        with self._lock:
            first = next(self._tokens)
            self._tokens = itertools.count(first + len(requests))
        tokens = range(first, first + len(requests))
        for token, request in zip(tokens, requests, strict=True):
            self._pending[token] = _Pending(request, model, arena)
        return tokens

    def detach(self, tokens: Iterable[int]) -> None:
        """Mark the requests of a batch that are answered later, after their execution."""
        for token in tokens:
            if (pending := self._pending.get(token)) is not None:
                pending.request.detached = True

    def set_log_levels(self) -> None:
        """Tell the library which log lines are wanted; it costs nothing while that does not change."""
        verbose, info = logger.isEnabledFor(logging.DEBUG), logger.isEnabledFor(logging.INFO)
        levels = 0b0110 | info | verbose << 3
        if levels != self._levels:
            self._levels = levels
            shim().nereid_set_log_levels(levels)

    def deliver(self, events: list[Any], first: int = 0, requests: Sequence[Request] = ()) -> None:
        """Give events to their requests, in order; states of sequences first, for their responses have them.

        `requests` are those of the execution that has returned the events, `first` is the token of the first:
        the thread that waits may have heard already that the library has done with them.
        """
        for event in events:
            if event[0] == STATE:
                _, token, name, datatype, shape, data = event
                self._pending[token].states.append(Tensor(name, datatype, tuple(shape), data))
        for event in events:
            try:
                if event[0] in (RESCHEDULED, ACTIVITY):
                    token = event[1]
                    _mark(requests[token - first] if requests else self._pending[token].request, event)
                else:
                    self._deliver(event)
            except Exception:  # the events of other requests must not be lost
                logger.exception("delivering the event of a C++ backend")

    def _deliver(self, event: list[Any]) -> None:
        kind, token = event[0], event[1]
        if kind == RESPONSE:
            _deliver_response(self._pending[token], *event[2:])
        elif kind == CLOSED:
            self._watched.discard(token)
            pending = self._pending.pop(token)
            if event[2]:
                _abandon(pending)
        elif kind == LOG:
            _log(*event[1:])
        elif kind == WATCH:
            self._watched.add(token)
        elif kind == CALL:
            callers = [found for caller in event[2] if (found := self._pending.get(caller)) is not None]
            self._calls.start(token, [caller.request for caller in callers], *event[3:])
        elif kind == CANCEL:
            self._calls.cancel(token)
        elif kind == QUESTION:
            self._calls.answer(*event[1:])
        elif kind == TIMED:
            with self._lock:  # instances have threads of their own
                record_response(self._pending[token].model.responses, *event[2:])

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while True:
            if poll.poll(_CANCEL_POLL_MS if self._watched else None):
                os.eventfd_read(self._descriptor)
                try:
                    self.deliver(msgspec.msgpack.decode(read(shim().nereid_take)))
                except Exception:
                    logger.exception("receiving events of C++ backends")
            self._pass_cancellations_on()

    def _pass_cancellations_on(self) -> None:
        for token in list(self._watched):
            pending = self._pending.get(token)
            if pending is None or pending.request.is_cancelled():
                self._watched.discard(token)
                shim().nereid_cancel(token)


def _deliver_response(
    pending: _Pending,
    final: bool,
    code: int,
    text: str,
    parameters: dict[str, Any],
    outputs: list[list[Any]],
) -> None:
    request, model = pending.request, pending.model
    tensors = [_tensor(pending, *output) for output in outputs]
    if request.answered:  # the server has failed it, because it took too long
        return
    if code >= 0:
        request.deliver(failed(failure_of(code, text), request.infer.id, final))
        return
    if pending.states:
        names = {tensor.name for tensor in tensors}
        tensors += [state for state in pending.states if state.name not in names]
    request.deliver(
        InferResponse(model.name, model.version_text, tuple(tensors), request.infer.id, parameters, final)
    )


def _tensor(pending: _Pending, name: str, datatype: str, shape: list[int], data: Any) -> Tensor:
    if type(data) is list:
        data = _large(pending, *data)
    signature = pending.model.signature
    if signature.reshaped:
        for output in signature.outputs:
            if output.name == name:
                return Tensor(name, datatype, output.spec.client_shape(shape), data)
    return Tensor(name, datatype, tuple(shape), data)


def _large(pending: _Pending, place: int, size: int, foreign: int = 0) -> memoryview:
    """Return a part of the arena; or copy what the library allocated because the arena was too small."""
    if not foreign:
        assert pending.arena is not None
        return pending.arena[place : place + size]
    data = allocate(size)
    ctypes.memmove(address_of(data), place, size)
    shim().nereid_free(place)
    return data


def _abandon(pending: _Pending) -> None:
    """Fail a request that nothing will answer; the caller of the execution fails those of its own result."""
    request, model = pending.request, pending.model
    if request.answered or not (request.detached or model.config.model_transaction_policy.decoupled):
        return
    request.deliver(failed(internal(_ABANDONED.format(model.name)), request.infer.id))


def _mark(request: Request, event: list[Any]) -> None:
    if event[0] == RESCHEDULED:
        request.rescheduled = True
    else:
        request.report_activity(event[3], event[2])


def _log(level: int, file: str, line: int, text: str) -> None:
    logger.log(_LEVELS[level], "%s (%s:%d)", text, PurePath(file).name, line)
