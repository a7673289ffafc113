"""Two nodes (two raylets on this machine): a model on the other node answers over TCP."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import psutil
import pytest
import tritonclient.http

from tests.cluster.conftest import write_model
from tests.cluster.given_model import MODEL, OVERRIDE, constant
from tests.cluster.load import Load
from tests.server import ROOT, Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NODES = ("first", "second")
PAIRS = tuple(f"pair{number}" for number in range(6))
"""Models with two replicas, which nothing places."""
TWICE = 'parameters { key: "ray_replicas" value { string_value: "2" } }'
PACKED = TWICE + ' parameters { key: "ray_placement" value { string_value: "pack" } }'
PLACED = 'parameters {{ key: "ray_resources" value {{ string_value: "{{\\"{}\\": 0.01}}" }} }}'


class Nodes(NamedTuple):
    """The environment to reach a cluster by, and the process it hangs on."""

    env: dict[str, str]
    root: psutil.Process
    commands: IO[str]

    def tell(self, command: str) -> None:
        """Give a command to `two_nodes.py`."""
        self.commands.write(f"{command}\n")
        self.commands.flush()

    def nodes_of(self, title: str) -> list[int]:
        """The raylet, by its process id, of each replica of a deployment."""
        return sorted(raylet for raylet, _ in self._found(title))

    def replicas(self, title: str) -> list[int]:
        return [pid for _, pid in self._found(title)]

    def _found(self, title: str) -> list[tuple[int, int]]:
        """The process ids of each replica's raylet and of itself."""
        found = []
        for process in self.root.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it may end while it is looked at
                if f"ServeReplica:{title}" in " ".join(process.cmdline()):
                    found.append((process.ppid(), process.pid))
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """A cluster of two nodes, each with a resource of its own."""
    env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "two_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **env},
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("ADDRESS"))
        yield Nodes({**env, "RAY_ADDRESS": address}, psutil.Process(process.pid), process.stdin)
        process.communicate("", timeout=60)


@pytest.fixture(scope="module")
def server(cluster: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the first node, with a model of the node's name on each."""
    directory = tmp_path_factory.mktemp("nodes")
    for node in NODES:
        write_model(directory / "repository", node, more=PLACED.format(node))
    for pair in PAIRS:
        write_model(directory / "repository", pair, more=TWICE)
    write_model(directory / "repository", "packed", more=PACKED)
    arguments = [
        f"--model-repository={directory / 'repository'}",
        "--channel-address=node",
        "--model-control-mode=explicit",
        "--load-model=*",
    ]
    server = Server(arguments, directory / "log", cluster.env)
    try:
        yield server.start()
    finally:
        server.stop()


def has_local_client(pid: int) -> bool:
    """Whether a replica's unix socket has a connection beside the one that listens."""
    sockets = psutil.Process(pid).net_connections("unix")
    return sum(1 for s in sockets if str(s.laddr).endswith(f"{pid}.sock")) > 1


def has_remote_client(pid: int) -> bool:
    """Whether a TCP port that a replica listens on has a connection."""
    sockets = psutil.Process(pid).net_connections("tcp")
    ports = {s.laddr.port for s in sockets if s.status == psutil.CONN_LISTEN}
    return any(s.laddr.port in ports for s in sockets if s.status == psutil.CONN_ESTABLISHED)


def test_model_on_the_other_node(cluster: Nodes, server: Server) -> None:
    wait_until(lambda: len(cluster.replicas("nereid:ingress")) == len(NODES), 30.0, "an ingress on each node")
    for node in NODES:
        with Load(server.http_port, node, 4) as load:
            answers = load.answers
            wait_until(lambda answers=answers: len(answers) > 100, 20.0, "a hundred answers")  # type: ignore[misc]
        assert load.failures == []
    for node in NODES:
        (replica,) = cluster.replicas(f"{node}:1")
        wait_until(lambda pid=replica: has_local_client(pid), 10.0, "the ingress of its node")  # type: ignore[misc]
        wait_until(lambda pid=replica: has_remote_client(pid), 10.0, "the other ingress")  # type: ignore[misc]


def test_replicas_of_a_model_are_on_both_nodes_unless_they_are_packed(cluster: Nodes, server: Server) -> None:
    for pair in PAIRS:
        assert len(set(cluster.nodes_of(f"{pair}:1"))) == len(NODES), pair
    assert len(cluster.nodes_of("packed:1")) == 2 and len(set(cluster.nodes_of("packed:1"))) == 1


def test_files_of_a_request_reach_the_other_node(server: Server) -> None:
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    for node in NODES:
        config = json.loads(OVERRIDE)
        config["parameters"] = {"ray_resources": {"string_value": json.dumps({node: 0.01})}}
        client.load_model(f"given_{node}", config=json.dumps(config), files={"file:1/model.py": MODEL % 7})
        assert constant(client, f"given_{node}") == 7


def test_second_server_of_a_cluster_is_refused(cluster: Nodes, server: Server, tmp_path: Path) -> None:
    """It would share the first one's Serve, and end it when it stops."""
    assert server.process is not None
    write_model(tmp_path / "repository", "other")
    second = Server([f"--model-repository={tmp_path / 'repository'}"], tmp_path / "log", cluster.env)
    second.start(wait=False)
    assert second.process is not None
    assert second.process.wait(60) == 1
    text = f"has a server already, process {server.process.pid} on "
    reasons = [line for line in second.output().splitlines() if line.startswith("error: creating server: ")]
    assert len(reasons) == 1 and text in reasons[0], second.output()
    assert server.ready()


def test_who_takes_no_answers_does_not_keep_the_manager_from_others(cluster: Nodes, server: Server) -> None:
    """As an ingress whose machine was cut off, which the manager answers every five seconds."""
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60)
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "follower.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **cluster.env, "PYTHONPATH": f"{ROOT}:{ROOT}/client"},
    ) as follower:
        try:
            assert follower.stdout is not None and follower.stdout.readline().startswith(b"TABLE")
            follower.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            while time.monotonic() - begun < 8.0:
                asked = time.monotonic()
                client.get_model_repository_index()
                assert time.monotonic() - asked < 3.0
                time.sleep(0.1)
        finally:
            follower.kill()


def test_every_node_has_an_ingress_as_nodes_come_and_go(cluster: Nodes, server: Server) -> None:
    def ingresses(count: int) -> bool:
        nodes = cluster.nodes_of("nereid:ingress")
        return len(nodes) == len(set(nodes)) == count

    wait_until(lambda: ingresses(2), 30.0, "an ingress on both nodes")

    def spread(count: int) -> bool:
        nodes = [cluster.nodes_of(f"{pair}:1") for pair in PAIRS]
        return all(len(found) == 2 and len(set(found)) == count for found in nodes)

    with Load(server.http_port, "first", 4) as load, Load(server.http_port, PAIRS[0], 4) as pair:
        cluster.tell("lose the second node")
        wait_until(lambda: ingresses(1) and spread(1), 60.0, "the other node's ingress and replicas alone")
        settled = len(pair.failures)
        cluster.tell("add a node")
        wait_until(lambda: ingresses(2), 90.0, "an ingress on the new node")
        wait_until(lambda: spread(2), 90.0, "a replica of each pair on the new node")
    assert len(load.failures) <= 2 * 4, "more than what was in flight at the lost node"
    assert settled <= 2 * 4 and len(pair.failures) == settled, "a move has lost requests"
