"""Values in a store that hangs or fails: it has one thread, and nobody waits for it twice."""

import os
import threading
from collections.abc import Iterator, Sequence

import pytest

from deployments import stored
from deployments.stored import KeptValues, StoredValues
from tests.waiting import until


class HangingStore:
    """A store each of whose calls hangs until something is written to a pipe."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.begun: list[str] = []

    def read(self, key: str) -> bytes | None:
        self._hang(key)
        return b"value"

    def write(self, key: str, value: bytes) -> None:
        self._hang(key)

    def remove(self, key: str) -> None:
        self._hang(key)

    def keys(self, prefix: str) -> Sequence[str]:
        self._hang(prefix)
        return [f"{prefix}a", f"{prefix}b"]

    def _hang(self, key: str) -> None:
        self.begun.append(key)
        os.read(self.read_end, 1)


@pytest.fixture
def store() -> Iterator[HangingStore]:
    made = HangingStore()
    yield made
    os.close(made.read_end)
    os.close(made.write_end)


async def test_a_store_that_hangs_has_one_thread(
    store: HangingStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stored, "_STORE_S", 0.05)
    values = KeptValues(StoredValues(store, "drift/"), "the drift", "what is known of drift")
    for number in range(64):
        assert not await values.store(f"m{number}", b"x" if number % 2 else None)
    assert await values.read() == {}
    assert store.begun == ["drift/m0"]
    named = [thread for thread in threading.enumerate() if thread.name == "stored drift/"]
    assert len(named) == 1
    assert "the drift of 'm63' is not stored beyond a restart" in caplog.text
    os.write(store.write_end, b"xx")
    await until(lambda: not named[0].is_alive())
    assert await values.store("m1", b"x")


async def test_each_value_has_its_time(store: HangingStore) -> None:
    os.write(store.write_end, b"xxx")
    assert await StoredValues(store, "drift/").read() == {"a": b"value", "b": b"value"}
    assert store.begun == ["drift/", "drift/a", "drift/b"]
