"""The request path without a cluster: front and replica as two processes, CPU time per request of each.

python -m benchmarks.request_path
python -m benchmarks.request_path --against ../other-checkout --only 'grpc identity x8' --data-plane python

The ingress is both fronts over the routed service, the replica a served model behind a channel server; only
Serve, which is not on the path, is missing. Rates depend on who else uses the machine, CPU time much less;
rounds alternate between the trees compared. Switches are voluntary context switches: how often a process
went to sleep.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from app.native.choice import CHOICES

ROOT = Path(__file__).resolve().parent.parent
WARMUP_S = 0.5


class Spent(NamedTuple):
    """Microseconds of CPU and voluntary context switches of a process."""

    us: float
    switches: float


class Cell(NamedTuple):
    """A row: costs per request, and requests answered a second."""

    per_second: float
    ingress: Spent
    replica: Spent


# The served processes.


def serve_replica(model: str, directory: Path, data_plane: str) -> None:
    """Load an example model and answer a channel until the parent closes the pipe."""
    from app.transport.channel.server import ChannelServer
    from app.transport.loops.thread import LoopThread, freeze_heap
    from benchmarks.one_process import KEY
    from deployments.replica.assembly import assemble
    from deployments.replica.control import ReplicaHandler
    from deployments.scheduling.dynamic.serve_batch import without_serve

    plane = LoopThread("data-plane")
    spec = _spec(model, directory, data_plane)

    def make_server(served: Any) -> ChannelServer:
        return ChannelServer(ReplicaHandler(served), KEY, spec.server.transport)

    replica = assemble(spec, plane, without_serve, make_server)
    freeze_heap()
    path = str(directory / "private" / f"{os.getpid()}.sock")
    print(*plane.call(replica.end.listen(path)), flush=True)
    sys.stdin.read()
    plane.call(replica.close())


def _spec(model: str, directory: Path, data_plane: str) -> Any:
    from app.transport.settings import TransportSettings
    from backends.registry.configuration import normalise
    from benchmarks.one_process import KEY
    from benchmarks.workloads import read_config
    from deployments.spec import ModelSpec, ReplicaSettings

    examples = ROOT / "model_repository"
    config = read_config(examples, model)
    config.backend = config.backend or "onnxruntime"
    config.dynamic_batching.SetInParent()
    return ModelSpec(
        name=model,
        version=1,
        directory=str(examples / model),
        config=normalise(config).SerializeToString(),
        application=f"{model}:1",
        fingerprint="",
        key=KEY,
        server=ReplicaSettings(transport=TransportSettings(data_plane=data_plane)),
    )


def serve_ingress(model: str, address: str, data_plane: str) -> None:
    """Serve both fronts in front of one replica until the parent closes the pipe."""
    from app.transport.loops.thread import LoopThread, freeze_heap, share_interpreter

    plane = LoopThread("data-plane")
    kept: list[Any] = []
    ports = plane.call(_open_ingress(model, address, data_plane, kept))
    freeze_heap()
    share_interpreter()
    print(*ports, flush=True)
    sys.stdin.read()


async def _open_ingress(model: str, address: str, data_plane: str, kept: list[Any]) -> tuple[int, int]:
    from app.ingress.assembly import make_router
    from app.ingress.client_memory.registry import SharedMemory
    from app.ingress.grpc.front import GrpcFront
    from app.ingress.rest.front import HttpFront
    from app.ingress.service.routed import RoutedInferenceService
    from app.routing.table import ModelState, RoutingTable, VersionEntry
    from app.settings.settings import ServerSettings
    from app.transport.settings import TransportSettings
    from benchmarks.one_process import static_pools
    from benchmarks.workloads import read_config

    pools = static_pools({"unix": address, "tcp": ""}, TransportSettings(data_plane=data_plane))
    router = make_router(ServerSettings(), pools)
    config = read_config(ROOT / "model_repository", model).SerializeToString()
    entry = VersionEntry(model, 1, ModelState.READY, application=f"{model}:1", config=config)
    await router.apply(RoutingTable(1, True, (entry,)))
    regions = SharedMemory(os.path.join(os.path.dirname(address.removeprefix("unix:")), "regions"))
    service = RoutedInferenceService(ServerSettings(), router, None, regions)  # type: ignore[arg-type]
    http, grpc = HttpFront(service, data_plane=data_plane), GrpcFront(service, data_plane=data_plane)
    kept += (http, grpc)
    return await http.start("127.0.0.1", 0), await grpc.start("127.0.0.1", 0)


# The measurement.


class Side(NamedTuple):
    """The two processes of one source tree."""

    name: str
    ingress: int
    replica: int
    http: int
    grpc: int


@contextmanager
def running(tree: Path, *role: str) -> Iterator[tuple[int, list[str]]]:
    """Start the tree's file of this name in a role; yield its pid and its first line of output."""
    command = [sys.executable, "-P", str(tree / "benchmarks" / "request_path.py"), "--role", *role]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree), str(tree / "client")))}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().split()
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()


def start(stack: ExitStack, name: str, tree: Path, model: str, directory: Path, plane: str) -> Side:
    replica, (address, *_) = stack.enter_context(running(tree, "replica", model, str(directory), plane))
    ingress, ports = stack.enter_context(running(tree, "ingress", model, address, plane))
    return Side(name, ingress, replica, *map(int, ports))


def share(stack: ExitStack, workload: Any, side: Side) -> None:
    """Make the files of a workload, for as long as the stack is open, and register them for all sides."""
    nbytes = sum(array.nbytes for array in workload.inputs.values())
    stack.callback(workload.regions.remove)
    workload.regions.write(workload.inputs, nbytes)
    for region in (workload.regions.inputs, workload.regions.outputs):
        body = json.dumps({"key": f"/{region}", "offset": 0, "byte_size": nbytes}).encode()
        path = f"/v2/systemsharedmemory/region/{region}/register"
        urllib.request.urlopen(f"http://127.0.0.1:{side.http}{path}", body, timeout=20).close()


def spent(pid: int) -> Spent:
    """Return the costs since the process began, over its threads."""
    us = switches = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        us += int((task / "schedstat").read_text().split()[0]) / 1000
        found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
        switches += int(found[1]) if found else 0
    return Spent(us, switches)


def measure(side: Side, job: Any, generator: Any, seconds: float) -> Cell:
    """Run a load; return what each request cost of those that were answered."""
    with generator.running(job) as load:
        load.warm_up(WARMUP_S)
        before = spent(side.ingress), spent(side.replica)
        result = load.watch(seconds)
        after = spent(side.ingress), spent(side.replica)
    if result.errors or not result.requests:
        raise RuntimeError(f"{result.requests} answers, and {dict(result.texts)}")
    used = [
        Spent((b.us - a.us) / result.requests, (b.switches - a.switches) / result.requests)
        for a, b in zip(before, after, strict=True)
    ]
    return Cell(result.infer_per_s, *used)


def compare(arguments: argparse.Namespace) -> None:
    """Print a row for each cell and tree."""
    from benchmarks.load import Generator, closed
    from benchmarks.traffic import differing_workloads
    from benchmarks.workloads import all_workloads

    trees = [("here", ROOT)] + [(tree.name, tree.resolve()) for tree in arguments.against]
    print(f"{'':22}{'':9}{'req/s':>8}{'ingress us':>12}{'replica us':>12}{'sum':>8}{'switches':>15}")
    repository = ROOT / "model_repository"
    for workload in all_workloads(repository) + (differing_workloads(repository) if arguments.only else ()):
        keys = [
            (protocol, n, f"{protocol} {workload.name} x{n}")
            for protocol in workload.protocols
            for n in arguments.connections
        ]
        keys = [key for key in keys if re.search(arguments.only, key[2])]
        if not keys:
            continue
        with ExitStack() as stack:
            generator = stack.enter_context(Generator())
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            sides = [
                start(stack, name, tree, workload.model, scratch, arguments.data_plane)
                for name, tree in trees
            ]
            if workload.regions:
                share(stack, workload, sides[0])
            for protocol, connections, key in keys:
                jobs = {
                    side: closed(workload, protocol, getattr(side, protocol), connections) for side in sides
                }
                _print_row(key, _in_turn(jobs, generator, arguments))


def _in_turn(jobs: dict[Side, Any], generator: Any, arguments: argparse.Namespace) -> dict[str, list[Cell]]:
    """Return the costs of each side, measured in turn."""
    cells: dict[str, list[Cell]] = {side.name: [] for side in jobs}
    for round_ in range(arguments.rounds):
        for side in jobs if round_ % 2 else reversed(jobs):
            cells[side.name].append(measure(side, jobs[side], generator, arguments.seconds))
    return cells


def _print_row(key: str, cells: dict[str, list[Cell]]) -> None:
    for name, of_side in cells.items():
        print(f"{key:22}{name:9}{_summary(of_side)}", flush=True)


def _summary(cells: list[Cell]) -> str:
    rate = statistics.median(cell.per_second for cell in cells)
    ours = statistics.median(cell.ingress.us for cell in cells)
    theirs = statistics.median(cell.replica.us for cell in cells)
    switches = [
        statistics.median(getattr(cell, role).switches for cell in cells) for role in ("ingress", "replica")
    ]
    return (
        f"{rate:8,.0f}{ours:12.1f}{theirs:12.1f}{ours + theirs:8.1f}   {switches[0]:6.2f}{switches[1]:6.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="(identity|simple) x", help="cells whose name matches")
    parser.add_argument(
        "--connections", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32]
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement (1.5)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, action="append", default=[], help="another source tree")
    parser.add_argument("--record", action="store_true", help="write a file of benchmarks/results too")
    parser.add_argument("--data-plane", choices=CHOICES, default="auto")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    match arguments.role:
        case ["replica", model, directory, data_plane]:
            serve_replica(model, Path(directory), data_plane)
        case ["ingress", model, address, data_plane]:
            serve_ingress(model, address, data_plane)
        case _:
            from benchmarks import results

            with results.recorded("request_path", arguments.record):
                compare(arguments)


if __name__ == "__main__":
    main()
