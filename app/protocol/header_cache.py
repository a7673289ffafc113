"""A bounded cache of decoded headers: clients send the same header bytes with every request."""

from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")


class HeaderCache(Generic[Value]):
    """Maps exact header bytes to their decoded form; evicts the oldest entry first.

    Args:
        max_entries: entries cached.
        max_key_bytes: longer headers are not cached.
        max_bytes: sum of the lengths of the cached headers.

    Attributes:
        entries: what is cached, to look at only.
    """

    def __init__(self, max_entries: int, max_key_bytes: int, max_bytes: int) -> None:
        self.entries: dict[bytes, Value] = {}
        self._max_entries = max_entries
        self.max_key_bytes = max_key_bytes
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self.get = self.entries.get

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, key: bytes, value: Value) -> None:
        """Cache a value, unless its header is too long."""
        if len(key) > self.max_key_bytes:
            return
        with self._lock:
            if key not in self.entries:
                self.entries[key] = value
                self._bytes += len(key)
            while len(self.entries) > self._max_entries or self._bytes > self._max_bytes:
                oldest = next(iter(self.entries))
                del self.entries[oldest]
                self._bytes -= len(oldest)
