"""A server whose model is in a rollout that mirrors every request: clients notice nothing, and nothing grows.

python -m tests.long.mirror

The candidate's outputs are a ten-thousandth larger, so that an answer of it would be seen. Tensors of 600 KB
and of 16 bytes are sent over HTTP and gRPC, and in shared memory, whose requests are not mirrored.
"""

import argparse
import json
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm

from tests.long.client_threads import ClientThreads
from tests.long.processes import Growth, Watch
from tests.long.server import say
from tests.server import Server, wait_until

MODEL: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        outputs = [pb_utils.Tensor("y", each * np.float32(FACTOR)) for each in inputs]
        return [pb_utils.InferenceResponse([each]) for each in outputs]
"""
CONFIG: Final = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
FACTORS: Final = {1: 2.0, 2: 2.0002}
LARGE: Final = 150_000
SMALL: Final = 4
RISE_MIB: Final = 16.0
"""Of a process, while it is watched; the budget of mirrored requests is 256 MB."""

Ask = Callable[[Any, np.ndarray], np.ndarray]


def write(repository: Path, version: int) -> None:
    directory = repository / "m"
    (directory / str(version)).mkdir(parents=True)
    (directory / "config.pbtxt").write_text(CONFIG)
    (directory / str(version) / "model.py").write_text(f"FACTOR = {FACTORS[version]}\n{MODEL}")


def rollout(server: Server, change: dict[str, Any] | None = None) -> Any:
    """Change the rollout if there is a change; return its status."""
    path = "/v2/repository/models/m/rollout" if change else "/v2/models/m/rollout"
    body = json.dumps(change).encode() if change else None
    with urllib.request.urlopen(f"http://{server.http_url}{path}", body, timeout=120) as answer:
        return json.load(answer)


def infer(package: Any, client: Any, x: np.ndarray) -> np.ndarray:
    given = package.InferInput("x", x.shape, "FP32")
    given.set_data_from_numpy(x)
    found: np.ndarray = client.infer("m", [given]).as_numpy("y")
    return found


def infer_shared(client: Any, x: np.ndarray) -> np.ndarray:
    """Send input and output in a region of shared memory of its own."""
    name = f"nereid-{uuid.uuid4().hex}"
    region = shm.create_shared_memory_region(name, f"/{name}", 2 * x.nbytes)
    try:
        shm.set_shared_memory_region(region, [x])
        client.register_system_shared_memory(name, f"/{name}", 2 * x.nbytes)
        given = http_client.InferInput("x", x.shape, "FP32")
        given.set_shared_memory(name, x.nbytes)
        output = http_client.InferRequestedOutput("y")
        output.set_shared_memory(name, x.nbytes, x.nbytes)
        client.infer("m", [given], outputs=[output])
        found: np.ndarray = shm.get_contents_as_numpy(region, np.float32, x.shape, x.nbytes).copy()
        client.unregister_system_shared_memory(name)
        return found
    finally:
        shm.destroy_shared_memory_region(region)


class Clients(ClientThreads):
    """Three clients that ask until they are stopped; a wrong answer, or none, is kept as text."""

    def __init__(self, server: Server) -> None:
        self.answered = 0
        self.wrong: list[str] = []
        over_http = (http_client, server.http_url, lambda client, x: infer(http_client, client, x))
        over_grpc = (grpc_client, server.grpc_url, lambda client, x: infer(grpc_client, client, x))
        shared = (http_client, server.http_url, infer_shared)
        kinds = enumerate((over_http, over_grpc, shared))
        super().__init__([partial(self._run, number, *kind) for number, kind in kinds], 60.0)

    def _run(self, number: int, package: Any, url: str, ask: Ask) -> None:
        random = np.random.default_rng(number)
        with package.InferenceServerClient(url) as client:
            while not self.stop.is_set():
                for size in (LARGE, SMALL):
                    x = random.random(size, np.float32)
                    try:
                        right = ask(client, x).tobytes() == (x * np.float32(FACTORS[1])).tobytes()
                        if not right:
                            self.wrong.append(f"{package.__name__}, {size} elements: another answer")
                    except Exception as error:
                        self.wrong.append(f"{package.__name__}, {size} elements: {error}")
                    self.answered += 1


@contextmanager
def started(ingress_replicas: int = 1) -> Iterator[tuple[Server, Path]]:
    """A server with version 1 of the model, and its repository."""
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as directory:
        repository = Path(directory, "models")
        write(repository, 1)
        arguments = [
            f"--model-repository={repository}",
            "--model-control-mode=explicit",
            "--load-model=m",
            "--allow-client-shm=true",
            f"--ingress-replicas={ingress_replicas}",
        ]
        server = Server(arguments, Path(directory, "server.log"), {"TMPDIR": directory}).start()
        try:
            yield server, repository
        finally:
            server.stop()


def begin(server: Server, repository: Path, mirror: float, **spec: Any) -> None:
    """Add version 2 and begin a rollout that stays at its first step."""
    write(repository, 2)
    judge = {"output": {"outputs": {"y": "exact"}, "min_agreement": 0}}  # counted, and no alarm
    policy = {"mirror": mirror, "judge": judge, "step": {"min_seconds": 1e6, "max_seconds": 2e6}, **spec}
    rollout(server, {"action": "start", "candidate": 2, "spec": policy})
    wait_until(lambda: rollout(server)["state"] in ("shadow", "step"), 120, "the candidate is loaded")


def complaints(clients: Clients, outcomes: Any, grown: list[Growth], plain: float) -> Iterator[str]:
    """What is wrong."""
    yield from clients.wrong[:10]
    mirror = outcomes["mirror"]
    if not mirror["compared"] or mirror["failed"]:
        yield f"nothing was compared, or something failed: {mirror}"
    if not 1.9e-4 < mirror["max_difference"] < 2.1e-4 or mirror["differing"] != mirror["compared"]:
        yield f"the candidate's outputs are a ten-thousandth larger: {mirror}"
    if outcomes["candidate"]["ok"]:
        yield "the candidate has answered clients"
    for each in grown:
        if each.rise > RISE_MIB:
            yield f"{each.role} ({each.pid}) has grown by {each.rise:.1f} MiB"
    if plain == 0:
        yield "nothing was answered"


def run(seconds: float) -> bool:
    """Ask without and with mirroring; return whether nothing is wrong."""
    with started() as (server, repository), Clients(server) as clients:
        assert server.process is not None
        time.sleep(seconds / 4)
        plain = clients.answered / (seconds / 4)
        begin(server, repository, mirror=100)
        time.sleep(seconds / 4)  # arenas and pools grow to what they need
        before, since = clients.answered, time.monotonic()
        with Watch(psutil.Process(server.process.pid)) as watch:
            time.sleep(seconds)
        mirrored = (clients.answered - before) / seconds
        grown = watch.growths(since, seconds / 2)
        outcomes = rollout(server)["total"]
    say(f"{plain:.0f} answers/s without mirroring, {mirrored:.0f} with it; {outcomes['mirror']}")
    for each in grown[:5]:
        say(f"{each.role[:40]:40} {each.rise:7.2f} MiB in {each.seconds:.0f} s")
    found = list(complaints(clients, outcomes, grown, plain))
    for line in found:
        say(f"WRONG: {line}")
    return not found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="with mirroring, after a warm-up")
    sys.exit(not run(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
