"""Load generators, one request in flight a connection: wrk (HTTP), h2load (gRPC), perf_analyzer (either).

The first two cost a few microseconds a request: on a small machine the server, not the tool, is the limit.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.workloads import HEADER_LENGTH, MODEL_INFER, Workload

GRACE_S = 30
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_FIRST_REQUESTS = 4
"""Requests of each connection that h2load estimates a server's rate by."""
WRK_SCRIPT = """
local file = assert(io.open({body!r}, "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/json"
if {header_length} > 0 then
  wrk.headers["Content-Type"] = "application/octet-stream"
  wrk.headers["{header}"] = "{header_length}"
end
file:close()

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\nRESULT {{"requests": %d, "us": %d, "errors": %d, "p50_us": %d, "p99_us": %d}}\\n',
    summary.requests, summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


@dataclass(frozen=True)
class LoadResult:
    infer_per_s: float
    p50_ms: float
    p99_ms: float
    requests: int
    errors: int


class LoadFailed(RuntimeError):
    """A load generator did not run, or printed something unexpected."""


def run_tool(command: list[str], seconds: float, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + GRACE_S, env=env, check=False
    )
    if done.returncode != 0:
        raise LoadFailed(
            f"{command[0]} exited with {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}"
        )
    return done.stdout


def wrk(workload: Workload, port: int, connections: int, seconds: float, scratch: Path) -> LoadResult:
    body, header_length = workload.http_body()
    body_file, script = scratch / "body.bin", scratch / "request.lua"
    body_file.write_bytes(body)
    script.write_text(
        WRK_SCRIPT.format(body=str(body_file), header=HEADER_LENGTH, header_length=header_length)
    )
    output = run_tool(
        [
            *("wrk", "-t1", f"-c{connections}", f"-d{math.ceil(seconds)}s", "--timeout", "20s"),
            *("-s", str(script), f"http://127.0.0.1:{port}{workload.path}"),
        ],
        seconds,
    )
    found = re.search(r"^RESULT (.*)$", output, re.MULTILINE)
    if not found:
        raise LoadFailed(f"wrk printed no result: {output[-500:]}")
    result = json.loads(found[1])
    return LoadResult(
        infer_per_s=result["requests"] / result["us"] * 1e6,
        p50_ms=result["p50_us"] / 1e3,
        p99_ms=result["p99_us"] / 1e3,
        requests=result["requests"],
        errors=result["errors"],
    )


def h2load(workload: Workload, port: int, connections: int, seconds: float, scratch: Path) -> LoadResult:
    """Run h2load for about `seconds`, by numbers of requests that grow until one takes as long.

    A run that h2load ends by time leaves its last requests behind, and tritonserver 2.51 crashes when it
    executes a request whose client has left (triton-inference-server/server, issue 8034).
    """
    requests = _FIRST_REQUESTS * connections
    while True:
        result = _h2load(workload, port, connections, requests, seconds, scratch)
        if requests >= result.infer_per_s * seconds / 2:
            return result
        requests = math.ceil(result.infer_per_s * seconds)


def _h2load(
    workload: Workload, port: int, connections: int, requests: int, seconds: float, scratch: Path
) -> LoadResult:
    """Send so many requests; h2load sees HTTP statuses only, so empty replies with an error count here."""
    message = workload.grpc_message()
    body_file, log = scratch / "body.grpc", scratch / "h2load.log"
    body_file.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    log.unlink(missing_ok=True)
    output = run_tool(
        [
            *("h2load", "-t1", "-m1", f"-c{connections}", f"-n{requests}", f"--log-file={log}"),
            *("-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(body_file)),
            f"http://127.0.0.1:{port}{MODEL_INFER}",
        ],
        seconds,
    )
    return parse_h2load(output, log)


def parse_h2load(output: str, log: Path) -> LoadResult:
    """Read the log, a line for each request: start in us, HTTP status (-1: failed), duration in us."""
    finished = re.search(r"finished in ([\d.]+)(us|ms|s),", output)
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output)
    data_bytes = re.search(r"\((\d+)\) data", output)
    if not (finished and counts and data_bytes):
        raise LoadFailed(f"h2load printed no result: {output[-500:]}")
    succeeded, *failures = map(int, counts.groups())
    if not succeeded:
        raise LoadFailed(f"h2load: no request succeeded: {output[-500:]}")
    rows = np.loadtxt(log, dtype=np.int64, ndmin=2)
    latency_ms = rows[rows[:, 1] == 200, 2] / 1e3
    empty = 0 if int(data_bytes[1]) >= 5 * succeeded else succeeded
    return LoadResult(
        infer_per_s=succeeded / (float(finished[1]) * _UNITS[finished[2]]),
        p50_ms=float(np.percentile(latency_ms, 50)),
        p99_ms=float(np.percentile(latency_ms, 99)),
        requests=succeeded,
        errors=sum(failures) + empty,
    )


@dataclass(frozen=True)
class PerfAnalyzer:
    """Triton's own tool; heavier than wrk and h2load, and limited by itself in bodies over 100 KB."""

    binary: Path
    library_path: str

    def run(
        self, workload: Workload, protocol: str, port: int, connections: int, seconds: float, scratch: Path
    ) -> LoadResult:
        report = scratch / "perf_analyzer.csv"
        data = scratch / "perf_analyzer.json"
        tensors = {
            name: {"content": array.ravel().tolist(), "shape": array.shape[1:]}
            for name, array in workload.inputs.items()
        }
        data.write_text(json.dumps({"data": [tensors]}))
        shapes = [f"--shape={name}:{','.join(map(str, a.shape[1:]))}" for name, a in workload.inputs.items()]
        run_tool(
            [
                *(
                    str(self.binary),
                    "-m",
                    workload.model,
                    "-x",
                    "1",
                    "-i",
                    protocol,
                    "-u",
                    f"127.0.0.1:{port}",
                ),
                *(f"--concurrency-range={connections}", f"--max-threads={connections}", "--percentile=99"),
                *(f"--measurement-interval={int(seconds * 1000)}", "-r", "3", "-s", "50"),
                *(f"--input-data={data}", "-f", str(report), *shapes),
            ],
            seconds * 4 + GRACE_S,
            env={**os.environ, "LD_LIBRARY_PATH": self.library_path},
        )
        return parse_perf_analyzer(report, seconds)


def parse_perf_analyzer(report: Path, seconds: float) -> LoadResult:
    row = next(csv.DictReader(report.read_text().splitlines()))
    rate = float(row["Inferences/Second"])
    return LoadResult(
        infer_per_s=rate,
        p50_ms=float(row["p50 latency"]) / 1e3,
        p99_ms=float(row["p99 latency"]) / 1e3,
        requests=int(rate * seconds),
        errors=0,  # it exits with an error on any failed request
    )
