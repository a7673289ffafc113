"""Copies from and to a mapped file that shrinks, and what SIGBUS does otherwise."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

import pytest

from tests.descriptors import descriptors
from tests.server import ROOT

extension = pytest.importorskip("app.native.extension")

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 300 * PAGE
DATA = bytes(range(256)) * (SIZE // 256)

SHRINK = """
import os, sys
size = int(sys.argv[1])
while os.path.exists(sys.argv[2]):
    os.truncate(sys.argv[2], 5 * size // 7)
    os.truncate(sys.argv[2], size)
"""
"""Shortens a file, within a page, and makes it longer again for as long as it has a name."""

FAULT = """
import ctypes, faulthandler, mmap, os, signal, sys
from app.native.extension import Mapping
def file():
    found = os.memfd_create("client")
    os.ftruncate(found, 1 << 20)
    return found
def copies():
    shared = file()
    mapped = Mapping(shared)
    os.ftruncate(shared, 0)
    print(mapped.read(bytearray(1 << 20), 0), flush=True)
if "before" in sys.argv:
    faulthandler.enable()
if "ignored" in sys.argv:
    signal.signal(signal.SIGBUS, signal.SIG_IGN)
copies()
if "after" in sys.argv:
    faulthandler.enable()
copies()
if "sent" in sys.argv:
    os.kill(os.getpid(), signal.SIGBUS)
else:
    other = file()
    view = mmap.mmap(other, 1 << 20)
    os.ftruncate(other, 0)
    if "copied" in sys.argv:
        Mapping(file()).read(view, 0)
    else:
        view[0]
print("survived")
"""
"""Copies from a file that has shrunk, then has a fault that is nobody's, in a child process."""


@pytest.fixture
def file() -> Iterator[IO[bytes]]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as found:
        found.write(DATA)
        found.flush()
        yield found
        if not os.path.exists(found.name):
            open(found.name, "x").close()


def test_bytes_are_read_and_written_at_their_offset(file: IO[bytes]) -> None:
    mapping = extension.Mapping(file.fileno())
    found = bytearray(SIZE - 3)
    assert mapping.read(found, 3) and found == DATA[3:]
    assert mapping.write(b"hello", SIZE - 5)
    assert os.pread(file.fileno(), 10, SIZE - 7) == DATA[-7:-5] + b"hello"
    assert mapping.read(bytearray(), SIZE) and mapping.write(b"", 0)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, SIZE + 1), (SIZE, 1), (-1, 1), (sys.maxsize, sys.maxsize)]
)
def test_bytes_outside_the_mapping_are_refused(file: IO[bytes], offset: int, nbytes: int) -> None:
    mapping = extension.Mapping(file.fileno())
    data = bytearray(min(nbytes, SIZE + 1))
    assert not mapping.read(data, offset) and not mapping.write(data, offset)
    assert os.pread(file.fileno(), 2 * SIZE, 0) == DATA


@pytest.mark.parametrize("length", [0, PAGE, 10 * PAGE - 1])
def test_file_that_has_shrunk_is_refused(file: IO[bytes], length: int) -> None:
    """Also within the last page, of which the rest reads as zeros."""
    mapping = extension.Mapping(file.fileno())
    os.ftruncate(file.fileno(), length)
    assert not mapping.read(bytearray(10 * PAGE), 0) and not mapping.write(bytes(10 * PAGE), 0)
    assert os.fstat(file.fileno()).st_size == length
    assert os.pread(file.fileno(), SIZE, 0) == DATA[:length], "nothing was written"
    assert mapping.linked


def test_file_without_a_name_is_refused(file: IO[bytes]) -> None:
    mapping = extension.Mapping(file.fileno())
    os.unlink(file.name)
    assert not mapping.linked and not mapping.read(bytearray(1), 0) and not mapping.write(b"1", 0)


def test_empty_file_cannot_be_mapped(file: IO[bytes]) -> None:
    os.ftruncate(file.fileno(), 0)
    with pytest.raises(OSError):
        extension.Mapping(file.fileno())
    with pytest.raises(OSError):
        extension.Mapping(-1)


def test_mapping_keeps_the_file_and_no_longer(file: IO[bytes]) -> None:
    before = descriptors(file.name)
    mapping = extension.Mapping(file.fileno())
    os.close(os.dup(file.fileno()))
    assert descriptors(file.name) == before + 1 and mapping.read(bytearray(9), 0)
    del mapping
    assert descriptors(file.name) == before
    with open("/proc/self/maps") as maps:
        assert file.name not in maps.read()


def copy_all(name: str, failures: list[object]) -> None:
    with open(name, "r+b") as file:
        mapping, refused = extension.Mapping(file.fileno()), 0
    for _ in range(20_000):
        found = bytearray(SIZE)
        if mapping.read(found, 0):
            continue
        refused += 1
        mapping.write(DATA, 0)
        if refused > 100:
            return
    failures.append(f"{refused} refusals")


def test_other_process_shortens_the_file_under_copies_of_several_threads(file: IO[bytes]) -> None:
    failures: list[object] = []
    with subprocess.Popen([sys.executable, "-c", SHRINK, str(SIZE), file.name]) as child:
        threads = [threading.Thread(target=copy_all, args=(file.name, failures)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.unlink(file.name)
        child.communicate()
    assert failures == []


def ended(*how: str) -> tuple[int, list[str], str]:
    """Exit status, copies and errors of a child process that has a fault of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-c", FAULT, *how]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("handlers", [(), ("before",), ("after",), ("before", "after"), ("ignored",)])
def test_fault_of_another_address_still_ends_the_process(handlers: tuple[str, ...]) -> None:
    status, copies, errors = ended(*handlers)
    assert (status, copies) == (-signal.SIGBUS, ["False", "False"])
    dumped = "before" in handlers or "after" in handlers
    assert ("Fatal Python error: Bus error" in errors) == dumped


def test_fault_of_the_other_side_of_a_copy_ends_the_process() -> None:
    assert ended("copied")[:2] == (-signal.SIGBUS, ["False", "False"])


def test_signal_that_a_process_sends_acts_as_before() -> None:
    assert ended("sent")[0] == -signal.SIGBUS
    assert ended("sent", "after")[0] == -signal.SIGBUS
    assert ended("sent", "ignored") == (0, ["False", "False", "survived"], "")
