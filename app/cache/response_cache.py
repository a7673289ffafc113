"""Responses of a model version, cached by the content of their requests.

`--cache-config=local,size=BYTES` bounds the entries of each process; `redis,host=...` shares entries between
replicas and restarts. A failure of the cache is a miss, never a failed request.
"""

import asyncio
import hashlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.core.errors import invalid_arg, unsupported
from app.core.installed.installation import install_command
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest, InferResponse, ParameterValue, Tensor

logger = logging.getLogger(__name__)

_ENTRY_OVERHEAD = 512
"""Approximate bytes of an entry beside its tensors: keys, names, shapes, objects."""

_PAUSE_S = 5.0
"""Seconds without requests to a Redis server after it has failed."""


class CachedTensor(msgspec.Struct, frozen=True, gc=False):
    """A cached output, whose bytes belong to the cache."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A cached response, without what is specific to one request."""

    outputs: tuple[CachedTensor, ...]
    parameters: dict[str, ParameterValue] = {}

    @classmethod
    def from_response(cls, response: InferResponse) -> "Entry":
        """Copy a response's tensors."""
        outputs = (CachedTensor(t.name, t.datatype, t.shape, bytes(t.data)) for t in response.outputs)
        return cls(tuple(outputs), dict(response.parameters))

    def response(self) -> InferResponse:
        """Return the response for another request of the same content."""
        tensors = tuple(Tensor(t.name, t.datatype, t.shape, t.data) for t in self.outputs)
        return InferResponse(outputs=tensors, parameters=dict(self.parameters))


Found = Callable[[Entry | None], None]


class ResponseCache(ABC):
    """Storage of entries. All methods run on the data-plane loop.

    Attributes:
        failures: lookups and insertions that have failed.
    """

    failures = 0

    def open(self) -> None:
        """Connect, to learn at once whether that fails."""
        return None

    @abstractmethod
    def lookup(self, key: bytes, found: Found) -> None:
        """Call `found` with the entry, or None, at once or later."""

    @abstractmethod
    def insert(self, key: bytes, entry: Entry) -> None:
        """Store an entry; failures are logged."""

    async def close(self) -> None:
        """Close connections."""
        return None


class LocalCache(ResponseCache):
    """Entries of this process; above `size` bytes the least recently used are evicted."""

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
    """Entries in a Redis server, bounded by its `maxmemory` policy. Keys begin with `nereid:`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._client = _redis_client(settings)
        self._decode = msgspec.msgpack.Decoder(Entry).decode
        self._tasks = Tasks()
        self._paused_until = 0.0
        self._works = True
        self._address = f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"

    def open(self) -> None:
        self._tasks.start(self._lookup(b"", lambda _: None))

    def lookup(self, key: bytes, found: Found) -> None:
        if time.monotonic() < self._paused_until:
            found(None)
        else:
            self._tasks.start(self._lookup(key, found))

    def insert(self, key: bytes, entry: Entry) -> None:
        if time.monotonic() >= self._paused_until:
            self._tasks.start(self._insert(key, entry))

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._client.aclose()

    async def _lookup(self, key: bytes, found: Found) -> None:
        entry = None
        try:
            data = await self._client.get(_redis_key(key))
            entry = self._decode(data) if data is not None else None
            self._succeeded()
        except Exception as error:
            self._pause(error)
        found(entry)

    async def _insert(self, key: bytes, entry: Entry) -> None:
        try:
            await self._client.set(_redis_key(key), msgspec.msgpack.encode(entry))
            self._succeeded()
        except Exception as error:
            self._pause(error)

    def _pause(self, error: Exception) -> None:
        self.failures += 1
        self._paused_until = time.monotonic() + _PAUSE_S
        if self._works:  # said once, however long it takes
            self._works = False
            text = "response cache: Redis at %s failed (%s); serving without it, and asking again every %g s"
            logger.warning(text, self._address, error, _PAUSE_S)

    def _succeeded(self) -> None:
        if not self._works:
            self._works = True
            logger.info("response cache: Redis at %s works again", self._address)


def _redis_key(key: bytes) -> str:
    return f"nereid:{key.hex()}"


_REDIS_KEYS = ("host", "port", "user", "password", "db", "connect_timeout", "socket_timeout", "tls_enabled",
               "cacert", "cacert_dir", "cert", "key", "pool_size", "wait_timeout")  # fmt: skip


def _redis_client(settings: Mapping[str, str]) -> Any:
    """Make the client for `--cache-config=redis,KEY=VALUE`; names are those of Triton's Redis cache.

    Timeouts are in milliseconds, half a second by default. `pool_size` and `wait_timeout` have no effect:
    connections are opened as they are needed. User and password may come from the environment, as in Triton.

    Raises:
        InferError: UNSUPPORTED without the package, INVALID_ARG for a setting.
    """
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
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
        username=settings.get("user", os.environ.get("TRITONCACHE_REDIS_USERNAME")),
        password=settings.get("password", os.environ.get("TRITONCACHE_REDIS_PASSWORD")),
        socket_connect_timeout=_number(settings, "connect_timeout", 500) / 1000,
        socket_timeout=_number(settings, "socket_timeout", 500) / 1000,
        # A miss costs less than the client's default, retries for four seconds.
        retry=Retry(NoBackoff(), retries=0),
        ssl=tls,
        ssl_ca_certs=settings.get("cacert"),
        ssl_ca_path=settings.get("cacert_dir"),
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
    """Make the cache of `--cache-config`, which the settings have checked; None without one."""
    for name, values in settings.items():
        return LocalCache(int(values["size"])) if name == "local" else RedisCache(values)
    return None


def request_key(request: InferRequest, *identity: str) -> bytes:
    """Return a digest (20 bytes) of all that determines the response of a request.

    Triton's key has model, version and the inputs' names and bytes. This one has datatype, shape and
    requested outputs too: without them a cached response may have another shape or other outputs.
    """
    digest = hashlib.blake2b(digest_size=20)
    outputs = sorted(output.name for output in request.outputs)
    shapes = [(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs]
    digest.update(repr((identity, outputs, sorted(shapes))).encode())
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        digest.update(tensor.data)
    return digest.digest()
