"""What a tape has of the requests of a server that is well, killed, or on a bad disk.

    python -m tests.long.tape                       everything; a disk that is full needs root
    python -m tests.long.tape --only kills --kills 20

`exact`: thousands of mixed requests at a rate of 1: the rows are the requests, with the bytes that
clients sent and got, and no sequence is cut. `kills`: a server is killed under load, again and again:
what was answered a second before is on the tape, and every segment can be read. `disks`: a disk that is
full, blocks, or takes 5 s to sync, a directory that goes away: no request fails, memory is bounded, and
rows and drops are the requests. The servers are `nereid dev`: no Ray.
"""

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import tritonclient.grpc
import tritonclient.http

from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import Row
from tests.server import ROOT, free_port

IDENTITY: Final = """
backend: "identity" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
SEQUENCES: Final = "sequence_batching { direct {} max_sequence_idle_microseconds: 60000000 }\n"
"""A client that the machine holds up for a second has not ended its sequence."""
PLANTED: Final = """
import os, time
_writev, _fdatasync, _here = os.writev, os.fdatasync, os.path.dirname(__file__)
def writev(*given):
    while os.path.exists(_here + "/blocked"):
        time.sleep(0.05)
    return _writev(*given)
def fdatasync(*given):
    time.sleep(5 * os.path.exists(_here + "/slow"))
    return _fdatasync(*given)
os.writev, os.fdatasync = writev, fdatasync
"""
"""A `sitecustomize`; files beside it say that the disk blocks, or is slow."""
MOST_MIB: Final = 160
"""What a tape may take: 32 MiB of rows that wait, 64 of requests in flight, and what is freed later."""
LATE_S: Final = 1.0
"""What was answered so long before a kill has to be there."""


class Sent(NamedTuple):
    """A request that was answered: its tensor, and when."""

    data: bytes
    sequence: int
    answered: float


class Server:
    """A server that records all; `place` is the tape's directory."""

    def __init__(self, models: Path, place: Path, planted: Path | None = None) -> None:
        self.port, self.grpc_port, self.metrics = free_port(), free_port(), free_port()
        ports = (
            f"--http-port={self.port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics}",
        )
        tape = (f"--tape={place}", "--tape-rate=1", "--tape-rate-limit=0")
        command = [sys.executable, "-m", "nereid", "dev", str(models), *ports, *tape]
        env = os.environ if planted is None else {**os.environ, "PYTHONPATH": str(planted)}
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=env)
        deadline = time.monotonic() + 120
        while not self._ready():
            assert self.process.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/health/ready", timeout=5):
                return True
        except OSError:
            return False

    def told(self) -> Counter[str]:
        """Return the metrics of the tape: rows, and drops by reason."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        found = Counter[str]()
        for name, reason, value in re.findall(
            r'^nereid_tape_(rows|dropped)(?:\{reason="(\w+)"\})? (\S+)$', text, re.M
        ):
            found[reason or name] = int(float(value))
        return found

    @property
    def memory_mib(self) -> int:
        """Its memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 >> 20

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(60)


class Load:
    """Clients that send requests of all sizes over both protocols, and keep what was answered."""

    def __init__(self, server: Server, threads: int, requests: int) -> None:
        self.sent: dict[str, Sent] = {}
        self.errors: list[str] = []
        self.stop = threading.Event()
        self._server, self._left, self._lock = server, requests, threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until all was sent."""
        for thread in self._threads:
            thread.join()

    def _next(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0 and not self.stop.is_set()

    def _run(self, number: int) -> None:
        chance, module = random.Random(number), (tritonclient.http, tritonclient.grpc)[number % 2]
        port = (self._server.port, self._server.grpc_port)[number % 2]
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        sequence, left, count = 0, 0, 0
        while left or self._next():  # a sequence is sent to its end
            count += 1
            name = f"{number}-{count}"
            options: dict[str, Any] = {"request_id": name}
            if number % 4 < 2:
                if start := left == 0:
                    sequence, left = 1 + number + 1000 * count, chance.randint(1, 9)
                left -= 1
                options |= {"sequence_id": sequence, "sequence_start": start, "sequence_end": left == 0}
            size = chance.choice((1, 16, 300, 20_000, 150_000) if chance.random() < 0.05 else (1, 16, 300))
            array = np.frombuffer(chance.randbytes(size * 2), np.uint16).astype(np.float32).reshape(1, -1)
            try:
                self._ask(module, client, array, options, sequence if number % 4 < 2 else 0)
            except Exception as error:
                if self._server.process.poll() is not None:
                    return
                self.errors.append(f"{error!r}: {error}")
                sequence, left = 0, 0
        client.close()

    def _ask(self, module: Any, client: Any, array: Any, options: dict[str, Any], sequence: int) -> None:
        given = module.InferInput("INPUT0", array.shape, "FP32")
        given.set_data_from_numpy(array)
        model = "steps" if sequence else "same"
        answer = client.infer(model, [given], **options).as_numpy("OUTPUT0")
        assert answer.tobytes() == array.tobytes()
        self.sent[options["request_id"]] = Sent(digest(array.tobytes()), sequence, time.time())


def digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def compared(load: Load, rows: list[Row], before: float = float("inf")) -> list[str]:
    """Return what is wrong with the rows of what was answered before a moment."""
    by_id = {row.id: row for row in rows}
    wrong = [] if len(by_id) == len(rows) else [f"{len(rows) - len(by_id)} rows more than requests"]
    for name, sent in load.sent.items():
        row = by_id.get(name)
        if row is None:
            wrong += [f"{name} is missing"] if sent.answered < before else []
        elif {digest(row.inputs[0].data), digest(row.responses[0].outputs[0].data)} != {sent.data}:
            wrong.append(f"{name} has other bytes")
        elif row.sequence_id != sent.sequence:
            wrong.append(f"{name} has another sequence")
    return wrong


def cut(rows: list[Row]) -> list[str]:
    """Return the sequences that are not whole: without a start or an end, or in another order."""
    whole: dict[Any, list[Row]] = {}
    for row in rows:
        if row.sequence_id:
            whole.setdefault(row.sequence_id, []).append(row)
    return [
        f"sequence {key} is cut"
        for key, each in whole.items()
        if [row.sequence_start for row in each] != [True] + [False] * (len(each) - 1)
        or [row.sequence_end for row in each] != [False] * (len(each) - 1) + [True]
    ]


def exact(models: Path, scratch: Path, requests: int) -> list[str]:
    """Compare the rows of many requests with what clients know."""
    server = Server(models, scratch / "tape")
    load = Load(server, 8, requests)
    load.join()
    server.stop()
    rows = list(Tape(scratch / "tape").rows())
    print(f"exact: {len(load.sent)} requests answered, {len(rows)} rows, {len(load.errors)} errors")
    missing = [] if len(rows) == len(load.sent) else ["rows and requests are not as many"]
    return [*missing, *load.errors, *compared(load, rows), *cut(rows)]


def kills(models: Path, scratch: Path, times: int) -> list[str]:
    """Kill the server under load."""
    wrong, place = list[str](), scratch / "tape"
    for number in range(times):
        shutil.rmtree(place, ignore_errors=True)
        server = Server(models, place)
        load = Load(server, 6, 1 << 30)
        time.sleep(1.5 + random.random())
        killed = time.time()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(20)
        load.stop.set()
        load.join()
        tape = Tape(place)
        rows = list(tape.rows())
        again = Server(models, place)  # it seals what the other has left
        again.stop()
        sealed = Tape(place)
        kept = list(sealed.rows())
        last = max((sent.answered for name, sent in load.sent.items()), default=0)
        newest = max((load.sent[row.id].answered for row in kept if row.id in load.sent), default=0)
        found = compared(load, kept, killed - LATE_S)
        if len(kept) < len(rows) or tape.damaged or sealed.damaged or sealed.unreadable or tape.unreadable:
            found.append(f"damaged: {tape.damaged} {sealed.damaged} {sealed.unreadable}")
        found += [f"{each.path} is open" for each in sealed.segments() if not each.sealed]
        late = last - newest
        print(f"kill {number + 1}: {len(load.sent)} answered, {len(kept)} rows, {late:.2f} s lost, {found}")
        wrong += found
    return wrong


def disks(models: Path, scratch: Path) -> list[str]:
    """Record to disks that fill, block, and are slow, and to a directory that goes away."""
    wrong = list[str]()
    planted = scratch / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(PLANTED)
    ways = {name: marked(planted / name) for name in ("blocked", "slow")}
    ways |= {"full": (fill, unfill), "away": (away, back)}
    for name, (break_, mend) in ways.items():
        with mounted(scratch / name) as place:
            if place is None:
                print("disks: a disk of its own needs root; skipped")
                continue
            server = Server(models, place / "tape", planted)
            wrong += [f"{name}: {each}" for each in on_disk(server, place, name, break_, mend)]
            server.stop()
    return wrong


def on_disk(
    server: Server, place: Path, name: str, break_: Callable[[Path], None], mend: Callable[[Path], None]
) -> list[str]:
    """Ask a server whose disk breaks, and is mended."""
    load = Load(server, 6, 1 << 30)
    time.sleep(1)
    before = server.memory_mib
    break_(place)
    time.sleep(5)
    memory = server.memory_mib
    broken = server.told()
    mend(place)
    time.sleep(7)  # a call that had begun takes 5 s
    load.stop.set()
    load.join()
    time.sleep(1.5)
    told = server.told()
    total = told.total()
    errors, sizes = len(load.errors), f"{before} to {memory} MiB"
    print(f"{name}: {len(load.sent)} answered, {dict(told)}, {errors} errors, {sizes}")
    wrong = list(load.errors)
    if memory - before > MOST_MIB:
        wrong.append(f"{memory - before} MiB more memory")
    if total != len(load.sent):
        wrong.append(f"{total} rows and drops, {len(load.sent)} requests")
    if told["rows"] <= broken["rows"]:
        wrong.append("nothing was recorded after the disk was mended")
    if total == told["rows"]:
        wrong.append("nothing was dropped")
    return wrong


def marked(file: Path) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    """Return what has the disk do what a file says, and what ends that."""
    return lambda _: file.touch(), lambda _: file.unlink()


def fill(place: Path) -> None:
    try:
        with open(place / "filler", "wb") as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError:
        pass


def unfill(place: Path) -> None:
    (place / "filler").unlink()


def away(place: Path) -> None:
    (place / "tape").rename(place / "elsewhere")
    (place / "tape").write_text("no directory")
    for path in (place / "elsewhere").rglob("*.open"):  # what is open already is full at once
        path.rename(path.with_suffix(".gone"))


def back(place: Path) -> None:
    (place / "tape").unlink()


@contextmanager
def mounted(place: Path) -> Iterator[Path | None]:
    """Mount a disk that has room for what is recorded here; None where that cannot be done."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(place)], capture_output=True)
    try:
        yield None if done.returncode else place
    finally:
        if not done.returncode:
            subprocess.run(["umount", "-l", str(place)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=("exact", "kills", "disks"))
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    wrong = list[str]()
    with tempfile.TemporaryDirectory(prefix="tape") as directory:
        models = Path(directory, "models")
        for name, more in (("same", ""), ("steps", SEQUENCES)):
            (models / name / "1").mkdir(parents=True)
            (models / name / "config.pbtxt").write_text(IDENTITY + more)
        parts: dict[str, Callable[[Path], list[str]]] = {
            "exact": lambda place: exact(models, place, options.requests),
            "kills": lambda place: kills(models, place, options.kills),
            "disks": lambda place: disks(models, place),
        }
        for name, run in parts.items():
            if options.only in (None, name):
                place = Path(directory, f"of-{name}")
                place.mkdir()
                wrong += run(place)
    print(*wrong[:20], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
