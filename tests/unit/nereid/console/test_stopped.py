"""A console that is stopped while it has many connections: what the server answers to others meanwhile."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.http as triton

from tests.server import EngineServer, Server, free_port, wait_until

CONNECTIONS = 60
BYTES = 1 << 20
REQUESTS = 200
CONFIG = """
backend: "identity" max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] }
instance_group { kind: KIND_CPU }
"""
HEADER = b'{"inputs": [{"name": "INPUT0", "shape": [%d], "datatype": "UINT8", ' % BYTES + (
    b'"parameters": {"binary_data_size": %d}}], "parameters": {"binary_data_output": true}}' % BYTES
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "models" / "echo" / "1").mkdir(parents=True)
    (tmp_path / "models" / "echo" / "config.pbtxt").write_text(CONFIG)
    flags = [f"--model-repository={tmp_path / 'models'}", "--allow-console=true"]
    running = EngineServer([*flags, f"--console-port={free_port()}"], tmp_path / "log").start()
    yield running
    running.stop()


def console_of(server: Server) -> psutil.Process:
    """Return the process of the console, once it listens."""
    found: list[psutil.Process] = []

    def listens() -> bool:
        assert server.process is not None
        children = psutil.Process(server.process.pid).children(recursive=True)
        found[:] = [each for each in children if "console" in each.cmdline()]
        return any(each.net_connections("tcp") for each in found)

    wait_until(listens, 120, "the console listens")
    return found[0]


def port_of(console: psutil.Process) -> int:
    listeners = [each for each in console.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return int(listeners[0].laddr.port)


def ask_in_part(port: int) -> socket.socket:
    """Send an inference to the console, but for its last byte."""
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port
    lengths = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    sent = head + lengths % (len(HEADER), len(HEADER) + BYTES)
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(sent + HEADER + bytes(BYTES - 1))
    return connection


def test_requests_are_answered_beside_a_stopped_console(server: Server) -> None:
    console = console_of(server)
    port = port_of(console)
    pages = [ask_in_part(port) for _ in range(CONNECTIONS)]

    def upstream() -> int:
        connections = console.net_connections("tcp")
        return sum(bool(each.raddr) and each.raddr.port == server.http_port for each in connections)

    wait_until(lambda: upstream() >= CONNECTIONS, 60, "the console has a connection for each page")
    os.kill(console.pid, signal.SIGSTOP)
    try:
        given = np.arange(64, dtype=np.uint8)
        tensor = triton.InferInput("INPUT0", [64], "UINT8")
        tensor.set_data_from_numpy(given)
        with triton.InferenceServerClient(server.http_url, network_timeout=60) as client:
            answers = [client.infer("echo", [tensor]).as_numpy("OUTPUT0") for _ in range(REQUESTS)]
        assert sum(np.array_equal(each, given) for each in answers) == REQUESTS
        assert server.ready()
        assert console.status() == psutil.STATUS_STOPPED
    finally:
        os.kill(console.pid, signal.SIGCONT)
        for each in pages:
            each.close()
    wait_until(lambda: server.get("/", port=port)[0] == 200, 60, "the console answers again")
