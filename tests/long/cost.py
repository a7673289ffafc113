"""Whether what the server accounts for is what its processes consume, as seen from outside.

    python -m tests.long.cost                          ten minutes on Ray, then rates with and without
    python -m tests.long.cost --seconds 60 --dev       one process, one minute
    python -m tests.long.cost --only rate --pairs 200

`account`: five models (rows, a model with two processes, one that calls another, an ensemble) and four
tokens, a reload and a SIGKILL. What is divided among tokens, idle and overhead must be within 2% of the
processor time of all processes, which this program reads from /proc itself; of two tokens that send as many
requests, the one with three times the rows must be charged 3.00 +- 0.09 times as much. `rate`: requests of
eight connections with the account and without, in short turns: at least 0.99 of the rate, within the interval
of what was measured.
"""

import argparse
import http.client
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
from prometheus_client.parser import text_string_to_metric_families

from app.access.tokens import encode, make_token, new_secret
from app.core.cost.ledger import read_hours
from benchmarks.load import Generator
from benchmarks.processes import role_of, tree
from benchmarks.request_path import spent
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.job import Endpoint, Job
from tests.server import Server

TOKENS: Final = ("three", "one", "calls", "two")
SETTLE_S: Final = 15.0
"""After the load until what was consumed is divided: reports come every few seconds."""
LOOK_S: Final = 0.25
MOST: Final = 0.02
RATIO: Final = 0.09
RATE: Final = 0.99
WIDTH: Final = 0.05
"""Of the interval of a rate that says something."""
CALLERS, TURN_S, WARM_UP_S = 8, 0.3, 2.0

TENSORS: Final = """
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
BURN: Final = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        end = time.thread_time() + 0.004 * len(x.as_numpy())
        while time.thread_time() < end:
            pass
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())])
"""
CALLS: Final = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        call = pb_utils.InferenceRequest(model_name="inner", requested_output_names=["Y"], inputs=[x])
        return pb_utils.InferenceResponse(call.exec().output_tensors())
"""
STEPS: Final = "".join(
    f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{before}" }} '
    f'output_map {{ key: "Y" value: "{after}" }} }}\n'
    for model, before, after in (("inner", "X", "M"), ("two", "M", "Y"))
)


def write_models(root: Path) -> None:
    """Write the repository."""
    group = "instance_group { count: 2 kind: KIND_CPU }\n"
    texts = {"rows": (BURN, ""), "two": (BURN, group), "inner": (BURN, ""), "outer": (CALLS, "")}
    for name, (model, more) in texts.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.py").write_text(model)
        (root / name / "config.pbtxt").write_text(f'backend: "python"\n{TENSORS}{more}')
    (root / "chain" / "1").mkdir(parents=True)
    steps = f'platform: "ensemble"\n{TENSORS}ensemble_scheduling {{ {STEPS} }}'
    (root / "chain" / "config.pbtxt").write_text(steps)
    (root / "same" / "1").mkdir(parents=True)
    named = TENSORS.replace('"X"', '"INPUT0"').replace('"Y"', '"OUTPUT0"')  # which the backend asks for
    (root / "same" / "config.pbtxt").write_text(f'backend: "identity"\n{named}')


def write_tokens(path: Path) -> dict[str, str]:
    """Write a file of tokens; return them by name."""
    secrets = {name: new_secret() for name in (*TOKENS, "operator")}
    scope = ("infer", "manage", "metrics")
    lines = [encode(make_token(secret, name=name, scope=scope)) for name, secret in secrets.items()]
    path.touch(0o600)
    path.write_text("".join(f"{line}\n" for line in lines))
    return secrets


def body(model: str, rows: int) -> str:
    """Return a request of some rows."""
    name = "INPUT0" if model == "same" else "X"
    tensor = {"name": name, "shape": [rows, 4], "datatype": "FP32", "data": [1.0] * 4 * rows}
    return json.dumps({"inputs": [tensor]})


class Client:
    """Makes requests with a token over one connection."""

    def __init__(self, server: Server, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}"}

    def post(self, path: str, body: str = "{}") -> int:
        """Return the status of the answer; 0 for none."""
        try:
            self._connection.request("POST", path, body, self._headers)
            answer = self._connection.getresponse()
            answer.read()
        except OSError:
            self._connection.close()
            return 0
        return answer.status

    def infer(self, model: str, rows: int) -> int:
        """Return the status of the answer to a request of some rows."""
        return self.post(f"/v2/models/{model}/infer", body(model, rows))


class Outside:
    """Adds up the processor time of a process and of all below it: the last seen of each that has ended."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._seen: dict[psutil.Process, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Return the sum of now."""
        self._look()
        return sum(list(self._seen.values()))

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for process in [self._root, *self._root.children(recursive=True)]:
            with suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process] = times.user + times.system


@contextmanager
def serving(place: Path, dev: bool, *flags: str) -> Iterator[Server]:
    """Start a server over the models of a directory."""
    server = Server([], place / f"server{len(list(place.iterdir()))}.log")
    repository = str(place / "models")
    if dev:
        server.program = (sys.executable, "-m", "nereid", "dev", repository)
    else:
        server.program = (*Server.program, "--model-repository", repository)
    server.program = (*server.program, "--model-control-mode=explicit", "--load-model=*", *flags)
    try:
        yield server.start()
    finally:
        server.stop()


def metrics(server: Server, token: str) -> dict[str, dict[str, float]]:
    """Return the sums of the families of costs, by the value of their first label."""
    connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=30)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
    text = connection.getresponse().read().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("nereid_cost_"):
            sums = found.setdefault(family.name.removeprefix("nereid_cost_"), {})
            for sample in family.samples:
                name = next(iter(sample.labels.values()), "")
                sums[name] = sums.get(name, 0.0) + sample.value
    return found


def load(server: Server, secrets: Mapping[str, str], ending: threading.Event) -> list[Counter[str]]:
    """Make requests of all tokens until the end; return the numbers of answers by token and status."""
    counts: list[Counter[str]] = []

    def run(*courses: tuple[str, str, int]) -> None:
        mine: Counter[str] = Counter()
        counts.append(mine)
        clients = {token: Client(server, secrets[token]) for token, _, _ in courses}
        while not ending.is_set():
            for token, model, rows in courses:  # in turn: each as many as the others
                mine[f"{token} {clients[token].infer(model, rows)}"] += 1
                time.sleep(random.expovariate(1 / 0.02))

    courses = (
        [("three", "rows", 3), ("one", "rows", 1)],
        [("calls", "outer", 1), ("calls", "chain", 1)],
        [("two", "two", 2)],
    )
    threads = [threading.Thread(target=run, args=each) for each in courses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def disturb(server: Server, token: str, seconds: float, dev: bool) -> None:
    """Reload a model, and kill the process of another one."""
    time.sleep(seconds * 0.4)
    print("reload:", Client(server, token).post("/v2/repository/models/inner/load"), flush=True)
    time.sleep(seconds * 0.3)
    assert server.process is not None
    below = psutil.Process(server.process.pid).children(recursive=True)
    name = "two_0_" if dev else "nereid: model two:1"
    for process in below:
        with suppress(psutil.Error):
            if name in " ".join(process.cmdline()):
                os.kill(process.pid, signal.SIGKILL)
                print("killed:", process.pid, flush=True)
                return
    print("killed: nothing", flush=True)


def account(place: Path, seconds: float, dev: bool) -> bool:
    """Compare the account with what is seen from outside; return whether all holds."""
    secrets = write_tokens(place / "tokens")
    flags = (f"--auth-tokens-file={place / 'tokens'}", f"--cost-directory={place / 'cost'}")
    with serving(place, dev, *flags) as server:
        assert server.process is not None
        outside = Outside(server.process.pid)
        time.sleep(SETTLE_S)
        before, began = metrics(server, secrets["operator"]), outside.seconds()
        ending = threading.Event()
        threading.Timer(seconds, ending.set).start()
        operator = secrets["operator"]
        disturbing = threading.Thread(target=disturb, args=(server, operator, seconds, dev))
        disturbing.start()
        print("answers:", sum(load(server, secrets, ending), Counter()), flush=True)
        disturbing.join()
        time.sleep(SETTLE_S)
        after, seen = metrics(server, secrets["operator"]), outside.seconds() - began
        outside.end()
    used = {
        name: {key: value - before.get(name, {}).get(key, 0.0) for key, value in sums.items()}
        for name, sums in after.items()
    }
    return judged(used, seen) & reconciled(place / "cost")


def judged(used: Mapping[str, Mapping[str, float]], seen: float) -> bool:
    """Say what was accounted for, and whether that is what was seen from outside."""
    for name, sums in used.items():
        print(f"{name}: {json.dumps({key: round(value, 2) for key, value in sums.items()})}")
    parts = ("cpu_seconds", "idle_cpu_seconds", "overhead_cpu_seconds")
    accounted = sum(sum(used[name].values()) for name in parts)
    difference = accounted / seen - 1
    clients = used["token_cpu_seconds"]
    ratio = clients["three"] / clients["one"]
    good = abs(difference) <= MOST and abs(ratio - 3) <= RATIO
    print(f"accounted {accounted:.2f} s, outside {seen:.2f} s: {difference:+.2%} (at most {MOST:.0%})")
    print(f"three times the rows: {ratio:.3f} times the cost (3 +- {RATIO}): {'good' if good else 'BAD'}")
    return good


def reconciled(directory: Path) -> bool:
    """Say whether the ledger's parts are what it has measured."""
    sums: dict[str, float] = {}
    for hour in read_hours([directory]):
        for row in hour.rows:
            sums[row.kind] = sums.get(row.kind, 0.0) + row.cpu_seconds
    parts = sum(value for kind, value in sums.items() if kind != "measured")
    difference = parts / sums["measured"] - 1
    print(f"ledger {json.dumps({kind: round(value, 2) for kind, value in sums.items()})}: {difference:+.2%}")
    return abs(difference) <= MOST


def rate(place: Path, pairs: int, dev: bool) -> bool:
    """Compare the rate of requests with the account and without; return whether it may be what it must be."""
    (place / "tokens").unlink(missing_ok=True)
    token = write_tokens(place / "tokens")["three"]
    flag = f"--auth-tokens-file={place / 'tokens'}"
    kept = f"--cost-directory={place / 'rate'}"
    with serving(place, dev, flag, kept) as one, serving(place, dev, flag, "--cost=false") as other:
        turns = [Turn(one, token), Turn(other, token)]
        with Generator() as generator:
            for turn in turns:
                generator.run(turn.job, WARM_UP_S)
            for _ in range(pairs):
                for turn in random.sample(turns, 2):
                    turn.take(generator)
    rates = interval([mine / its for mine, its in zip(turns[0].rates, turns[1].rates, strict=True)])
    times = [statistics.median(turn.ingress_us) for turn in turns]
    print(f"ingress, processor time of a request: {times[0]:.1f} us, without the account {times[1]:.1f} us")
    low, median, high = rates
    print(f"rate: {median:.4f} of that without, surely {low:.4f} to {high:.4f} (at least {RATE})")
    return high >= RATE and high - low <= WIDTH


class Turn:
    """A server in its turns of load, each as short as what else changes on a machine is long."""

    def __init__(self, server: Server, token: str) -> None:
        assert server.process is not None
        root = psutil.Process(server.process.pid)
        self._ingress = next((each for each in tree(root) if "ingress" in role_of(each).lower()), root).pid
        endpoint = Endpoint("http", "127.0.0.1", server.http_port, "/v2/models/same/infer")
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.job = Job(
            endpoint, (http_request(endpoint, headers, body("same", 1).encode()),), concurrency=CALLERS
        )
        self.rates: list[float] = []
        self.ingress_us: list[float] = []

    def take(self, generator: Generator) -> None:
        """Take a turn."""
        began = spent(self._ingress).us
        result = generator.run(self.job, TURN_S)
        assert result.requests and not result.failures
        self.rates.append(result.infer_per_s)
        self.ingress_us.append((spent(self._ingress).us - began) / result.requests)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of values, between the ends of its 95% interval (by the bootstrap)."""
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(1000))
    return medians[25], statistics.median(values), medians[974]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of load for the account (600)")
    parser.add_argument("--pairs", type=int, default=200, help="of turns for the rate (200)")
    parser.add_argument("--dev", action="store_true", help="servers of one process, without Ray")
    parser.add_argument("--only", choices=("account", "rate"), help="one of the two parts")
    given = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        write_models(place / "models")
        if given.only != "rate":
            good &= account(place, given.seconds, given.dev)
        if given.only != "account":
            good &= rate(place, given.pairs, given.dev)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
