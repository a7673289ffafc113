"""What programs that use `nereid_client` see when the server, or a replica, is killed under them.

64 threads, of which 16 have sequences: calls without a state must all succeed, and an answered step of a
sequence must have happened once. A request of 500 MB that is cut off and sent again must not take 1.3 times
its size in memory.
"""

import argparse
import os
import resource
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np
import psutil

import nereid_client
from tests.long.client_threads import ClientThreads
from tests.long.server import say, started
from tests.server import Server

_THREADS: Final = 64
_SEQUENCES: Final = 16
_STEPS: Final = 20
_LARGE: Final = 500_000_000


class Clients:
    """Calls for as long as `stop` is not set; counts how they end."""

    def __init__(self, url: str) -> None:
        self.seen: Counter[str] = Counter()
        self.stop = threading.Event()
        self._url = url

    def call(self, number: int) -> None:
        """Call a model without a state; retries have to hide every failure."""
        with nereid_client.connect(self._url, timeout=100) as server:
            model = server.model("add_one")
            while not self.stop.is_set():
                values = np.arange(number, number + 8, dtype=np.float32)
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


def main() -> None:
    """Run all, print a line for each, and fail where clients saw what they must not."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m tests.long.client_kills")
    parser.parse_args()
    failed = False
    with started(ingress_replicas=1) as (server, _):
        for protocol, port in (("http", server.http_port), ("grpc", server.grpc_port)):
            kills = {
                "replica": partial(kill_replica, server, "add_one"),
                "replica of sequences": partial(kill_replica, server, "running_total"),
                "server": partial(kill_server, server),
            }
            for what, kill in kills.items():
                seen = under_load(f"{protocol}://127.0.0.1:{port}", kill)
                failed |= any(name.startswith(("FAILED", "WRONG", "HANGING")) for name in seen)
                counts = ", ".join(f"{n} {name}" for name, n in seen.items())
                say(f"{protocol}, kill -9 of the {what}: {counts}")
        urllib.request.urlopen(f"http://{server.http_url}/v2/repository/models/sum/load", b"").close()
        copies = large("http", server.http_port)
        failed |= copies >= 1.3
        say(f"http, 500 MB sent twice: {copies:.2f} times its size in memory, with the caller's own array")
    sys.exit(failed)


if __name__ == "__main__":
    main()
