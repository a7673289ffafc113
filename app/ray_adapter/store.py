"""Small values that outlive the process that wrote them, in the store of Ray's control service."""

from typing import Final

from ray.experimental import internal_kv  # as Serve's controller does; Ray 2.60 has no public store

_NAMESPACE: Final = b"nereid"


def read(key: str) -> bytes | None:
    """Return a value; None where there is none."""
    value: bytes | None = internal_kv._internal_kv_get(key.encode(), namespace=_NAMESPACE)
    return value


def write(key: str, value: bytes) -> None:
    """Set a value."""
    internal_kv._internal_kv_put(key.encode(), value, overwrite=True, namespace=_NAMESPACE)


def remove(key: str) -> None:
    """Remove a value, if there is one."""
    internal_kv._internal_kv_del(key.encode(), namespace=_NAMESPACE)


def keys(prefix: str) -> list[str]:
    """Return the keys that begin with a prefix."""
    found: list[bytes] = internal_kv._internal_kv_list(prefix.encode(), namespace=_NAMESPACE)
    return [key.decode() for key in found]
