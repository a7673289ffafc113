"""Clients that keep a server busy and remember every answer, and its end under such a load."""

import http.client
import json
import signal
import threading
import time
from typing import NamedTuple

import numpy as np

from tests.long.client_threads import ClientThreads
from tests.server import Server, wait_until

VALUES = np.arange(16, dtype=np.float32)
_HEADER = {
    "inputs": [
        {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}
    ],
    "parameters": {"binary_data_output": True},
}


class Answer(NamedTuple):
    """One request: when it ended, its HTTP status (0: the connection broke) and what came back."""

    at: float
    status: int
    body: bytes

    @property
    def correct(self) -> bool:
        """Whether the model's answer was the input."""
        return self.status == 200 and self.body.endswith(VALUES.tobytes())


class Load(ClientThreads):
    """Clients that send one request after the other, each over a connection of its own.

    A connection that the server closes behind a complete answer is opened again, as any client would.
    """

    def __init__(self, port: int, model: str, clients: int = 8) -> None:
        self._port = port
        self._path = f"/v2/models/{model}/infer"
        self.answers: list[Answer] = []
        self.refused = 0
        super().__init__([self._run] * clients, 30)

    def end(self) -> None:
        """Let each client finish its request and stop."""
        self.__exit__()

    @property
    def failures(self) -> list[Answer]:
        """Answers that are not correct."""
        return [answer for answer in list(self.answers) if not answer.correct]

    def _run(self) -> None:
        while not self.stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                connection.connect()
            except OSError:
                self.refused += 1
                time.sleep(0.05)
                continue
            while not self.stop.is_set() and connection.sock is not None:
                self._ask(connection)
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        header = json.dumps(_HEADER).encode()
        headers = {"Inference-Header-Content-Length": str(len(header))}
        try:
            connection.request("POST", self._path, header + VALUES.tobytes(), headers)
            response = connection.getresponse()
            answer = Answer(time.monotonic(), response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            answer = Answer(time.monotonic(), 0, repr(error).encode())
            connection.close()
        self.answers.append(answer)


def check_stop_under_load(server: Server) -> None:
    """SIGTERM while the model `slow` is called: not ready first, no call lost, exit 0."""
    health: list[int] = []
    watching = threading.Event()

    def watch() -> None:
        while not watching.is_set():
            health.append(server.get("/v2/health/ready", timeout=2)[0])
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    with Load(server.http_port, "slow", 8) as load:
        wait_until(lambda: len(load.answers) > 8, 30.0, "answers of every client")
        watcher.start()
        wait_until(lambda: len(health) > 1, 10.0, "the health is watched")
        status = server.stop(signal.SIGTERM)
        watching.set()
    watcher.join()
    assert status == 0, server.output()[-4000:]
    assert not load.failures, load.failures
    assert health[0] == 200
    assert 503 in health, "health says not ready before the port closes"
    assert health[-1] == 0
