"""What programs that use `nereid_client` see when the server, or a replica, is killed under them.

64 threads, of which 16 have sequences: calls without a state must all succeed, and an answered step of a
sequence must have happened once. A request of 500 MB that is cut off and sent again must not take 1.3 times
its size in memory. 32 threads share a pool of slots in shared memory with a server that is started anew many
times: all calls must succeed, and the pool's region must be gone afterwards.
"""

import argparse
import itertools
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import psutil

import nereid_client
from nereid_client.pool import AsyncPool
from tests.long.client_threads import ClientThreads
from tests.long.server import say, started
from tests.server import ROOT, EngineServer, Server

_THREADS: Final = 64
_SEQUENCES: Final = 16
_STEPS: Final = 20
_LARGE: Final = 500_000_000
_POOL_THREADS: Final = 32
_REGISTERED_S: Final = 60.0
"""Until a client has found a server that was started anew: gRPC looks for it ever more seldom."""
_SHARED_MEMORY: Final = Path("/dev/shm")


class Clients:
    """Calls for as long as `stop` is not set; counts how they end."""

    def __init__(self, url: str) -> None:
        self.seen: Counter[str] = Counter()
        self.stop = threading.Event()
        self._url = url

    def call(self, number: int) -> None:
        """Call a model without a state."""
        with nereid_client.connect(self._url, timeout=100) as server:
            self.call_model(server.model("add_one"), number)

    def call_model(self, model: nereid_client.Model, number: int) -> None:
        """Call it with other values each time; retries have to hide every failure."""
        for first in itertools.count(number, _THREADS):
            if self.stop.is_set():
                return
            values = np.arange(first, first + 8, dtype=np.float32)
            try:
                right = np.array_equal(model(INPUT0=values)["OUTPUT0"], values + 1)
            except nereid_client.ServerError as error:
                self.seen[f"FAILED: {error}"] += 1
            else:
                self.seen["right" if right else "WRONG"] += 1

    def sequence(self, _: int) -> None:
        """Have sequences whose sums tell each step: step n adds 2**n. They may fail, not be wrong."""
        with nereid_client.connect(self._url, timeout=100) as server:
            while not self.stop.is_set():
                try:
                    self._one_sequence(server.model("running_total"))
                except nereid_client.ServerError:
                    self.seen["sequences that ended in an error"] += 1
                    time.sleep(0.05)

    def _one_sequence(self, model: nereid_client.Model) -> None:
        with model.sequence() as step:
            for n in range(_STEPS):
                total = step(INPUT0=[2.0**n], last=n == _STEPS - 1)["OUTPUT0"][0]
                self.seen["steps" if total == 2.0 ** (n + 1) - 1 else "WRONG STEP"] += 1


def kill_server(server: Server) -> None:
    """Kill every process of the server at once, and start it again two seconds later."""
    assert server.process is not None
    family = psutil.Process(server.process.pid)
    for process in [family, *family.children(recursive=True)]:
        process.kill()
    server.process.wait()
    time.sleep(2)
    server.start()


def kill_replica(server: Server, model: str) -> None:
    """Kill the process of a model."""
    (pid,) = server.replicas(f"{model}:1:")
    os.kill(pid, signal.SIGKILL)


def under_load(url: str, kill: Callable[[], None]) -> Counter[str]:
    """Return what clients saw before, during and after a kill."""
    clients = Clients(url)
    kinds = [clients.sequence] * _SEQUENCES + [clients.call] * (_THREADS - _SEQUENCES)
    with ClientThreads([partial(kind, number) for number, kind in enumerate(kinds)], 120) as threads:
        time.sleep(3)
        kill()
        time.sleep(5)
        clients.stop.set()
    if threads.hanging:
        clients.seen["HANGING"] = threads.hanging
    return clients.seen


def restart_server(server: Server) -> None:
    """Stop the server as a service manager does, and start it again."""
    server.stop()
    server.start()


def through_a_pool(url: str, restarts: Sequence[Callable[[], None]]) -> Counter[str]:
    """Return what clients saw that share a pool with a server that is started anew so many times."""
    clients = Clients(url)
    with nereid_client.connect(url, timeout=100) as server, server.pool(2 * _POOL_THREADS, 256) as pool:
        model = server.model("add_one").via(pool)
        calls = [partial(clients.call_model, model, number) for number in range(_POOL_THREADS)]
        with ClientThreads(calls, 120) as threads:
            for restart in restarts:
                known = pool.registrations
                restart()
                _wait_for_another(pool, known)
            clients.stop.set()
        clients.seen["registrations"] = pool.registrations
        clients.seen["in the body"] = pool.missed
    if threads.hanging:
        clients.seen["HANGING"] = threads.hanging
    if pool.registrations != 1 + len(restarts):
        clients.seen["WRONG NUMBER of registrations"] = pool.registrations
    for left in _SHARED_MEMORY.glob(f"nereid-pool-{os.getpid()}-*"):
        clients.seen[f"FAILED to unlink {left}"] += 1
    return clients.seen


def _wait_for_another(pool: AsyncPool, known: int) -> None:
    """Wait for one more registration of a pool, and on for others, which there must not be."""
    give_up = time.monotonic() + _REGISTERED_S
    while pool.registrations == known and time.monotonic() < give_up:
        time.sleep(0.05)
    time.sleep(2)


def pools(server: Server, times: int) -> bool:
    """Return whether a pool is a pool after so many restarts: half of them orderly, half by SIGKILL."""
    kinds = partial(restart_server, server), partial(kill_server, server)
    right = True
    for protocol, port in (("http", server.http_port), ("grpc", server.grpc_port)):
        seen = through_a_pool(f"{protocol}://127.0.0.1:{port}", [kinds[n % 2] for n in range(times)])
        right &= tell(f"{protocol}, a pool over {times} restarts", seen)
    return right


def pools_of_one_process(times: int) -> bool:
    """Do `pools` with `nereid dev`, which starts in a second."""
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(ROOT / "tests/long/models/add_one", Path(directory, "models/add_one"))
        arguments = [f"--model-repository={directory}/models", "--allow-client-shm=true"]
        server = EngineServer(arguments, Path(directory, "log")).start()
        try:
            return pools(server, times)
        finally:
            server.stop()


def tell(what: str, seen: Counter[str]) -> bool:
    """Print what clients saw; return whether it is what they may see."""
    counts = ", ".join(f"{n} {name}" for name, n in seen.items())
    say(f"{what}: {counts}")
    return not any(name.startswith(("FAILED", "WRONG", "HANGING")) for name in seen)


class CutOnce(threading.Thread):
    """Stands between a client and a server; ends the first connection after half of a large request."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self.cut = port, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def run(self) -> None:
        """Accept connections."""
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        copied = 0
        while data := source.recv(1 << 18):
            copied += len(data)
            if copied > _LARGE // 2 and not self.cut:
                self.cut = True
                break
            target.sendall(data)
        for end in (source, target):
            with suppress(OSError):  # the other direction has ended it
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def large(protocol: str, port: int) -> float:
    """Return how many times its size a large request took in this process that was sent twice."""
    between = CutOnce(port)
    between.start()
    values = np.ones(_LARGE // 4, np.float32)
    with nereid_client.connect(f"{protocol}://127.0.0.1:{between.port}", timeout=200) as server:
        model = server.model("sum")
        model.signature()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        total = model(INPUT0=values)["OUTPUT0"][0]
    if total != len(values) or not between.cut:
        sys.exit(f"the large request was not cut off, or its answer is wrong: {total}")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return 1 + grown * 1024 / values.nbytes


def kills(server: Server) -> bool:
    """Return whether clients saw what they may when processes of a server are killed."""
    right = True
    for protocol, port in (("http", server.http_port), ("grpc", server.grpc_port)):
        kinds = {
            "replica": partial(kill_replica, server, "add_one"),
            "replica of sequences": partial(kill_replica, server, "running_total"),
            "server": partial(kill_server, server),
        }
        for what, kill in kinds.items():
            right &= tell(
                f"{protocol}, kill -9 of the {what}", under_load(f"{protocol}://127.0.0.1:{port}", kill)
            )
    return right


def main() -> None:
    """Run all, print a line for each, and fail where clients saw what they must not."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m tests.long.client_kills")
    parser.add_argument(
        "--restarts", type=int, default=20, help="of `nereid dev` under a pool, each protocol"
    )
    parser.add_argument(
        "--cluster-restarts", type=int, default=2, help="the same with Ray; with 0 only those"
    )
    given = parser.parse_args()
    right = pools_of_one_process(given.restarts)
    if given.cluster_restarts:
        with started(ingress_replicas=1) as (server, _):
            right &= pools(server, given.cluster_restarts)
            right &= kills(server)
            urllib.request.urlopen(f"http://{server.http_url}/v2/repository/models/sum/load", b"").close()
            copies = large("http", server.http_port)
            right &= copies < 1.3
            say(
                f"http, 500 MB sent twice: {copies:.2f} times its size in memory, with the caller's own array"
            )
    sys.exit(not right)


if __name__ == "__main__":
    main()
