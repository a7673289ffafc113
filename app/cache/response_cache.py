"""Responses of a model version kept by the content of their requests.

`--cache-config=local,size=BYTES` bounds each process's own entries; `redis,host=...` shares them between
replicas and restarts. A cache that fails is a miss, never a failed request.
"""

import asyncio
import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.core.errors import invalid_arg, unsupported
from app.core.installation import install_command
from app.core.tensors import InferRequest, InferResponse, ParameterValue, Tensor

logger = logging.getLogger(__name__)

_ENTRY_OVERHEAD = 512
"""Bytes an entry takes beside its tensors, roughly: keys, names, shapes, objects."""

_PAUSE_S = 5.0
"""How long a Redis that did not answer is left alone."""


class CachedTensor(msgspec.Struct, frozen=True, gc=False):
    """An output as it is kept: its bytes belong to the cache."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A response without what belongs to one request."""

    outputs: tuple[CachedTensor, ...]
    parameters: dict[str, ParameterValue] = {}

    @classmethod
    def of(cls, response: InferResponse) -> "Entry":
        """Copy a response's tensors."""
        outputs = (CachedTensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in response.outputs)
        return cls(tuple(outputs), dict(response.parameters))

    def response(self) -> InferResponse:
        """The response for another request of the same content."""
        tensors = tuple(Tensor(t.name, t.datatype, t.shape, t.data) for t in self.outputs)
        return InferResponse(outputs=tensors, parameters=dict(self.parameters))


Found = Callable[[Entry | None], None]


class ResponseCache(ABC):
    """Where entries are kept. All methods run on the data-plane loop."""

    @abstractmethod
    def lookup(self, key: bytes, found: Found) -> None:
        """Call `found` with the entry or None, at once or later."""

    @abstractmethod
    def insert(self, key: bytes, entry: Entry) -> None:
        """Keep an entry, or not: failures are logged."""

    async def close(self) -> None:
        """Let go of connections."""
        return None


class LocalCache(ResponseCache):
    """In this process; the least recently used entries go when `size` bytes are exceeded."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[bytes, tuple[Entry, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, key: bytes, found: Found) -> None:
        held = self._entries.get(key)
        if held is None:
            found(None)
            return
        self._entries.move_to_end(key)
        found(held[0])

    def insert(self, key: bytes, entry: Entry) -> None:
        nbytes = _ENTRY_OVERHEAD + sum(len(tensor.data) for tensor in entry.outputs)
        if nbytes > self._size:
            reason = f"its response of {nbytes} bytes does not fit into {self._size} bytes"
            logger.warning("Failed to insert key [%s] into response cache: %s", key.hex(), reason)
            return
        if key in self._entries:
            return
        self._entries[key] = (entry, nbytes)
        self.nbytes += nbytes
        while self.nbytes > self._size:
            _, (_, freed) = self._entries.popitem(last=False)
            self.nbytes -= freed


class RedisCache(ResponseCache):
    """In a Redis server, whose own `maxmemory` policy bounds it. Keys begin with `nereid:`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._client = _redis_client(settings)
        self._decode = msgspec.msgpack.Decoder(Entry).decode
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused_until = 0.0

    def lookup(self, key: bytes, found: Found) -> None:
        if time.monotonic() < self._paused_until:
            found(None)
        else:
            self._spawn(self._lookup(key, found))

    def insert(self, key: bytes, entry: Entry) -> None:
        if time.monotonic() >= self._paused_until:
            self._spawn(self._insert(key, entry))

    async def close(self) -> None:
        await self._client.aclose()

    async def _lookup(self, key: bytes, found: Found) -> None:
        entry = None
        try:
            data = await self._client.get(_redis_key(key))
            entry = self._decode(data) if data is not None else None
        except Exception as error:
            self._pause(error)
        found(entry)

    async def _insert(self, key: bytes, entry: Entry) -> None:
        try:
            await self._client.set(_redis_key(key), msgspec.msgpack.encode(entry))
        except Exception as error:
            self._pause(error)

    def _pause(self, error: Exception) -> None:
        self._paused_until = time.monotonic() + _PAUSE_S
        logger.warning("response cache: Redis failed (%s); serving without it for %g s", error, _PAUSE_S)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _redis_key(key: bytes) -> str:
    return f"nereid:{key.hex()}"


_REDIS_KEYS = ("host", "port", "user", "password", "db", "connect_timeout", "socket_timeout", "tls_enabled",
               "cacert", "cert", "key")  # fmt: skip


def _redis_client(settings: Mapping[str, str]) -> Any:
    """The client for `--cache-config=redis,KEY=VALUE`; names are those of Triton's Redis cache.

    Times are in milliseconds there; without them an answer may take half a second.

    Raises:
        InferError: UNSUPPORTED without the package, INVALID_ARG for a setting.
    """
    try:
        from redis.asyncio import Redis
    except ImportError:
        text = f"the response cache 'redis' needs the extra: {install_command('redis')}"
        raise unsupported(text) from None
    for name in settings:
        if name not in _REDIS_KEYS:
            raise invalid_arg(f"unknown setting '{name}' of the response cache 'redis'")
    tls = settings.get("tls_enabled", "false").lower() in ("true", "1")
    return Redis(
        host=settings.get("host", "localhost"),
        port=_number(settings, "port", 6379),
        db=_number(settings, "db", 0),
        username=settings.get("user"),
        password=settings.get("password"),
        socket_connect_timeout=_number(settings, "connect_timeout", 500) / 1000,
        socket_timeout=_number(settings, "socket_timeout", 500) / 1000,
        ssl=tls,
        ssl_ca_certs=settings.get("cacert"),
        ssl_certfile=settings.get("cert"),
        ssl_keyfile=settings.get("key"),
    )


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(settings.get(name, default))
    except ValueError:
        raise invalid_arg(
            f"response cache: '{name}' must be a whole number, got '{settings[name]}'"
        ) from None


def make_cache(settings: Mapping[str, Mapping[str, str]]) -> ResponseCache | None:
    """The cache of `--cache-config`, already checked by the settings; None without one."""
    for name, values in settings.items():
        return LocalCache(int(values["size"])) if name == "local" else RedisCache(values)
    return None


def request_key(request: InferRequest, *identity: str) -> bytes:
    """Digest of what decides a response: 20 bytes.

    Triton's key has model, version and the inputs' names and bytes. Datatype, shape and requested outputs are
    here as well: without them a request may be answered with a tensor of another shape, or with outputs it
    did not ask for.
    """
    digest = hashlib.blake2b(digest_size=20)
    outputs = sorted(output.name for output in request.outputs)
    shapes = [(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs]
    digest.update(repr((identity, outputs, sorted(shapes))).encode())
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        digest.update(tensor.data)
    return digest.digest()
