"""Documents in files of a disk that hangs: one thread waits for it, and nothing else does."""

import os
import threading
from typing import Any, cast

import pytest

from deployments.rollout.storage import documents as module
from deployments.rollout.storage.documents import Documents, Storage
from tests.waiting import until


class Memory:
    """The cluster's store."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def write(self, key: str, value: bytes) -> None:
        self.values[key] = value


class HangingDisk:
    """Files whose writes hang until something is written to a pipe."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.begun: list[str] = []

    def write(self, kind: str, name: str, value: bytes) -> None:
        self.begun.append(name)
        os.read(self.read_end, 1)


async def test_a_disk_that_hangs_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WRITE_S", 0.05)
    store, disk = Memory(), HangingDisk()
    documents: Documents[Any] = Documents(Storage(cast(Any, store), cast(Any, disk)), "drift", object)
    for number in range(256):
        assert not await documents.write(f"m{number}", b"small", b"whole")
    named = [thread for thread in threading.enumerate() if thread.name == "drift files"]
    assert len(named) == 1 and disk.begun == ["m0"] and len(store.values) == 256
    os.write(disk.write_end, b"xx")
    await until(lambda: not named[0].is_alive())
    assert await documents.write("m1", b"small", b"whole")
    assert disk.begun == ["m0", "m1"]
    for end in (disk.read_end, disk.write_end):
        os.close(end)
