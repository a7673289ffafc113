"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from nereid_client import retry
from nereid_client.datatypes import Array, encode
from nereid_client.errors import DeadlineExceeded, InputError, ServerError, Unavailable
from nereid_client.feedback.requests import in_requests
from nereid_client.messages import TIMEOUT, Input, Options, Output, Parameter, Request, Response, on_host
from nereid_client.pool import AsyncPool, Lease, placed_arrays, read_size, through
from nereid_client.result import Result
from nereid_client.signature import Signature, by_name, read_signature
from nereid_client.transport import Tls, Transport

T = TypeVar("T")
_POLL: Final = 0.2
_INDEX_FIELDS: Final = ("name", "version", "state", "reason")


class AsyncServer:
    """A server, by the address of one of its endpoints.

    Args:
        url: "http://host:8000", "https://..", "grpc://host:8001" or "grpcs://..".
        token: sent as `Authorization: Bearer`.
        headers: sent with each request.
        tls: files for https and grpcs.
        options: fields of `Options`, for all calls.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        **options: Any,
    ) -> None:
        sent = dict(headers or {})
        if token:
            sent["Authorization"] = f"Bearer {token}"
        self._url, self._options = url, Options(**options)
        self.transport = _transport(url, sent, tls or Tls())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}>"

    async def __aenter__(self) -> AsyncServer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def live(self) -> bool:
        """Return whether the server runs; False if it cannot be reached."""
        return await _asked(self.transport.live(self._options.timeout))

    async def ready(self, model: str = "", version: str = "") -> bool:
        """Return whether the server, or a model, is ready; False if the server cannot be reached."""
        return await _asked(self.transport.ready(model, version, self._options.timeout))

    async def wait_ready(self, model: str = "", version: str = "", timeout: float = TIMEOUT) -> None:
        """Wait until the server, or a model, is ready.

        Raises:
            DeadlineExceeded: it is not, after `timeout` seconds.
        """
        end = monotonic() + timeout
        while not await self.ready(model, version):
            if monotonic() >= end:
                what = f"model '{model}'" if model else self._url
                raise DeadlineExceeded("DEADLINE_EXCEEDED", f"{what} is not ready after {timeout:g} s")
            await asyncio.sleep(_POLL)

    async def metadata(self) -> Mapping[str, Any]:
        """Return the server's name, version and extensions."""
        options = self._options
        return await retry.repeated(
            self.transport.describe, options.timeout, options.retry, self.transport.contact
        )

    async def statistics(self, model: str, version: str = "") -> Sequence[Mapping[str, Any]]:
        """Return what the server has counted of a model, of each version, as the JSON of the protocol."""
        return await self.transport.statistics(model, version, self._options.timeout)

    async def index(self) -> Sequence[Mapping[str, Any]]:
        """Return the models of the server's repositories: name, version, state, reason.

        A field that the server does not send is "".
        """
        rows = await self.transport.index(self._options.timeout)
        return [{**dict.fromkeys(_INDEX_FIELDS, ""), **row} for row in rows]

    async def load(
        self,
        model: str,
        config: Mapping[str, Any] | None = None,
        files: Mapping[str, bytes] | None = None,
        timeout: float = 300.0,
    ) -> None:
        """Load a model, or load it again; needs a server in mode EXPLICIT.

        Args:
            config: instead of that of the repository.
            files: contents by path, such as "1/model.onnx", instead of the repository's; need `config`.
        """
        text = "" if config is None else json.dumps(config)
        await self.transport.load(model, text, files or {}, timeout)

    async def unload(self, model: str, timeout: float = 300.0) -> None:
        """Unload a model; needs a server in mode EXPLICIT."""
        await self.transport.unload(model, timeout)

    def model(self, name: str, version: str | int = "") -> AsyncModel:
        """Return a model; its inputs and outputs are read at the first call."""
        return AsyncModel(self.transport, name, str(version), self._options)

    @contextlib.asynccontextmanager
    async def pool(
        self, slots: int = 32, slot_bytes: int | str = "1MiB", device: str = "cpu"
    ) -> AsyncIterator[AsyncPool]:
        """Share memory with a server on this machine, of `device` ("cuda", "cuda:1"): for `Model.via`."""
        pool = AsyncPool(self.transport, slots, read_size(slot_bytes), device)
        await pool.open()
        try:
            yield pool
        finally:
            await pool.close()


class AsyncModel:
    """A model of a server. Call it with its inputs by name, or with a mapping of them.

    Raises:
        InputError: the values do not fit the model; nothing was sent.
        ServerError: the answer is an error.
    """

    def __init__(self, transport: Transport, name: str, version: str, options: Options) -> None:
        self.name, self.version, self._options = name, version, options
        self._transport = transport
        self._signature: asyncio.Future[Signature] | None = None
        self._hedger = retry.Hedger()
        self._pool: AsyncPool | None = None

    def __repr__(self) -> str:
        version = f" version {self.version}" if self.version else ""
        known, takes = self._signature, ""
        if known is not None and known.done() and not known.cancelled() and known.exception() is None:
            takes = f": {known.result()}"
        where = self._transport.contact.url
        return f"<{type(self).__name__} {self.name}{version} of {where}{takes}>"

    def options(self, **options: Any) -> AsyncModel:
        """Return the same model, called with other `Options`."""
        return self._copied(_options=replace(self._options, **options))

    def via(self, pool: AsyncPool) -> AsyncModel:
        """Return the same model, called through the pool's shared memory."""
        return self._copied(_pool=pool)

    def _copied(self, **changed: Any) -> AsyncModel:
        other = AsyncModel.__new__(AsyncModel)
        other.__dict__.update(self.__dict__ | changed)
        return other

    async def signature(self) -> Signature:
        """Return what the model takes and gives; read once."""
        if self._signature is None or (self._signature.done() and self._signature.exception()):
            self._signature = asyncio.ensure_future(self._read_signature())
        return await asyncio.shield(self._signature)

    async def described(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the model's metadata and configuration as the JSON of the protocol."""

        async def attempt(left: float) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
            return await self._transport.describe_model(self.name, self.version, left)

        return await self._repeated(attempt)

    async def _repeated(self, attempt: retry.Attempt[T]) -> T:
        options = self._options
        return await retry.repeated(attempt, options.timeout, options.retry, self._transport.contact)

    async def _read_signature(self) -> Signature:
        return read_signature(*await self.described())

    async def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> Result:
        return await self._infer(by_name(inputs, named), {})

    async def map(self, values: Iterable[Mapping[str, Any]], concurrency: int = 64) -> AsyncIterator[Result]:
        """Yield the results of many calls in the order of their inputs, so many of them at once."""
        waiting: deque[asyncio.Future[Result]] = deque()
        try:
            for inputs in values:
                waiting.append(asyncio.ensure_future(self(inputs)))
                if len(waiting) >= concurrency:
                    yield await waiting.popleft()
            while waiting:
                yield await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()

    async def stream(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> AsyncIterator[Result]:
        """Yield the responses of a decoupled model. It is sent once: a response may have been used."""
        values = by_name(inputs, named)
        signature = await self.signature()
        request, _ = self._request(signature, values, {})
        async for response in self._transport.stream(on_host(request), self._options.timeout):
            arrays = {name: signature.typed(name, array) for name, array in response.arrays.items()}
            yield Result(response, arrays, False)

    async def feedback(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Say what was right, or how good answers were; return how many records the server has kept.

        Args:
            records: each with the `id` of a request (`Options.id`) or a `row` of the server's tape, and a
                `label`, the right `outputs` by name, or a `score` of 0 to 1. A label may name its `output`.

        Raises:
            ServerError: a record is wrong, or the server has no tape; those of requests before are kept.
        """
        kept = 0
        for some in in_requests(records):
            kept += await self._repeated(partial(self._transport.feedback, self.name, self.version, some))
        return kept

    async def feedback_figures(self) -> Mapping[str, Any]:
        """Return the accuracy or mean score of each version, and what became of the records."""
        return await self._repeated(partial(self._transport.feedback_figures, self.name))

    def sequence(self) -> AsyncSequence:
        """Return a sequence, to be used as a context manager."""
        return AsyncSequence(self._copied(_options=replace(self._options, retry=False, hedge=False)))

    async def _infer(self, values: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Result:
        signature = await self.signature()
        if signature.decoupled:
            raise InputError(f"model '{self.name}' is decoupled: call its stream()")
        request, added = self._request(signature, values, parameters)
        lease = None if self._pool is None else self._pool.lease()
        if self._pool is None or lease is None:
            response = await self._sent(request)
            arrays = response.arrays
        else:
            response, arrays = await self._through(self._pool, lease, request, signature)
        one_row = added and all(array.shape[:1] == (1,) for array in arrays.values())
        return Result(response, arrays, one_row)

    def _request(
        self, signature: Signature, values: Mapping[str, Any], parameters: Mapping[str, Parameter]
    ) -> tuple[Request, bool]:
        arrays, added = signature.arrays(values)
        options, inputs = self._options, []
        for name, array in arrays.items():
            datatype = signature.inputs[name].datatype
            inputs.append(Input(name, datatype, array.shape, encode(array, datatype)))
        names = options.outputs or (tuple(signature.outputs) if options.classes else ())
        outputs = tuple(Output(name, options.classes) for name in names)
        sent = {**options.parameters, **parameters}
        if options.priority:
            sent["priority"] = options.priority
        return Request(self.name, self.version, tuple(inputs), outputs, options.id, sent), added

    async def _sent(self, request: Request) -> Response:
        encoded = self._transport.encoded(on_host(request))

        async def once(left: float) -> Response:
            return await self._transport.infer(encoded, left)

        async def attempt(left: float) -> Response:
            return await self._hedger.run(once, left)

        return await self._repeated(attempt if self._options.hedge else once)

    async def _through(
        self, pool: AsyncPool, lease: Lease, request: Request, signature: Signature
    ) -> tuple[Response, Mapping[str, Array]]:
        placed = through(lease, pool, request, signature)
        try:
            response = await self._sent_through(pool, placed)
        except (DeadlineExceeded, asyncio.CancelledError):
            lease.abandon()
            raise
        except ServerError:
            lease.end()
            raise
        return response, {**response.arrays, **placed_arrays(lease, placed, response)}

    async def _sent_through(self, pool: AsyncPool, placed: Request) -> Response:
        encoded = self._transport.encoded(on_host(placed))

        async def attempt(left: float) -> Response:  # never hedged: two answers must not share a slot
            end, seen = monotonic() + left, pool.registrations
            try:
                return await self._transport.infer(encoded, left)
            except ServerError as error:
                if pool.region not in error.message:
                    raise
            await pool.register_again(seen, end - monotonic())  # the server was started anew since
            return await self._transport.infer(encoded, end - monotonic())

        return await self._repeated(attempt)


class AsyncSequence:
    """The requests of one sequence. They are never sent again: a step must not happen twice.

    The last step is told by `last=True`. Without one, the sequence is ended when the block is left, by one
    more request with the inputs of the last one, whose answer is dropped: the protocol has no other way.
    """

    def __init__(self, model: AsyncModel) -> None:
        self._model = model
        self._last: Mapping[str, Any] | None = None
        self._ended = False
        self.id = secrets.randbelow(1 << 62) + 1

    async def __aenter__(self) -> AsyncSequence:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._last is None or self._ended:
            return
        try:
            await self._step(self._last, True)
        except ServerError:
            if error is None:
                raise

    async def __call__(
        self, inputs: Mapping[str, Any] | None = None, /, *, last: bool = False, **named: Any
    ) -> Result:
        if self._ended:
            raise InputError("the sequence has ended")
        return await self._step(by_name(inputs, named), last)

    async def _step(self, values: Mapping[str, Any], last: bool) -> Result:
        first, self._last, self._ended = self._last is None, values, last
        return await self._model._infer(
            values, {"sequence_id": self.id, "sequence_start": first, "sequence_end": last}
        )


async def _asked(answer: Awaitable[bool]) -> bool:
    try:
        return bool(await answer)
    except (Unavailable, DeadlineExceeded):
        return False
    except ServerError as error:
        if error.code in ("NOT_FOUND", "INVALID_ARGUMENT"):  # of a model that is not there
            return False
        raise


def _transport(url: str, headers: Mapping[str, str], tls: Tls) -> Transport:
    scheme = url.partition(":")[0]
    if scheme in ("http", "https"):
        from nereid_client.http import HttpTransport

        return HttpTransport(url, headers, tls)
    if scheme in ("grpc", "grpcs"):
        try:
            from nereid_client.grpc import GrpcTransport
        except ImportError as error:
            raise ImportError("gRPC needs more: pip install 'nereid-client[grpc]'") from error
        return GrpcTransport(url, headers, tls)
    raise ValueError(f"'{url}' does not begin with http://, https://, grpc:// or grpcs://")
