"""A server as a Ray Serve user would write it: FastAPI ingress, DeploymentHandle, `@serve.batch` models.

Run at the best settings found for it: `RAY_SERVE_THROUGHPUT_OPTIMIZED`, HAProxy, plain pickle between
deployments, no access log. It receives the same request bytes as Nereid, and checks them less.

    python -m benchmarks.plain_serve --port 8100 --repository model_repository --temp-dir DIR
"""

import argparse
import asyncio
import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Serve reads these when it is imported, in every process of the cluster; the workers inherit them from here.
BEST_SETTINGS: Mapping[str, str] = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 << 20),
    "RAY_SERVE_HTTP_KEEP_ALIVE_TIMEOUT_S": "600",
    "RAY_USAGE_STATS_ENABLED": "0",
}
if __name__ == "__main__":
    os.environ.update(BEST_SETTINGS)

import numpy as np  # noqa: E402
import ray  # noqa: E402
from fastapi import FastAPI, Request, Response  # noqa: E402
from ray import serve  # noqa: E402
from ray.serve.config import HTTPOptions, ProxyLocation  # noqa: E402
from ray.serve.handle import DeploymentHandle  # noqa: E402

from benchmarks.workloads import DTYPES, EFFICIENTNET, HEADER_LENGTH, IDENTITY, TYPE_NAMES, read_config  # noqa: E402

Arrays = dict[str, np.ndarray]
MAX_ONGOING = 256
HEAVY_WAIT_S = (
    0.01  # `@serve.batch` closes a batch before it waits for the busy model: without this they stay at 1
)
web = FastAPI()


class Model:
    """One model deployment: a batch queue in front of `run`, and the counters Triton's statistics have."""

    def __init__(self, max_batch_size: int, wait_s: float) -> None:
        self.inferences = self.executions = 0
        self.infer = serve.batch(max_batch_size=max_batch_size, batch_wait_timeout_s=wait_s)(self._execute)

    async def _execute(self, requests: list[Arrays]) -> list[Arrays]:
        self.executions += 1
        self.inferences += len(requests)
        return await self.run(requests)

    async def run(self, requests: list[Arrays]) -> list[Arrays]:
        raise NotImplementedError

    def stats(self) -> dict[str, int]:
        return {"inference_count": self.inferences, "execution_count": self.executions}


class IdentityModel(Model):
    async def run(self, requests: list[Arrays]) -> list[Arrays]:
        return [{"OUTPUT0": request["INPUT0"]} for request in requests]


class OnnxModel(Model):
    def __init__(self, path: str, max_batch_size: int, threads: int, heavy: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [output.name for output in self.session.get_outputs()]
        self.in_thread = heavy
        super().__init__(max_batch_size, HEAVY_WAIT_S if heavy else 0.0)

    async def run(self, requests: list[Arrays]) -> list[Arrays]:
        batch = {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}
        if self.in_thread:
            outputs = await asyncio.to_thread(self.session.run, None, batch)
        else:
            outputs = self.session.run(None, batch)
        return [
            {name: output[row : row + 1] for name, output in zip(self.names, outputs, strict=True)}
            for row in range(len(requests))
        ]


class Ingress:
    def __init__(self, **models: DeploymentHandle[Any]) -> None:
        self.models = {
            name: handle.options(request_serialization="pickle", response_serialization="pickle")
            for name, handle in models.items()
        }

    @web.get("/v2/health/ready")
    async def ready(self) -> Response:
        return Response()

    @web.get("/v2/models/{name}/stats")
    async def stats(self, name: str) -> dict[str, Any]:
        return {"model_stats": [await self.models[name].stats.remote()]}

    @web.post("/v2/models/{name}/infer")
    async def infer(self, name: str, request: Request) -> Response:
        inputs = decode(await request.body(), int(request.headers[HEADER_LENGTH]))
        return encode(name, await self.models[name].infer.remote(inputs))


def decode(body: bytes, header_length: int) -> Arrays:
    arrays, offset = {}, header_length
    for tensor in json.loads(body[:header_length])["inputs"]:
        size = tensor["parameters"]["binary_data_size"]
        dtype = DTYPES[tensor["datatype"]]
        arrays[tensor["name"]] = np.frombuffer(body[offset : offset + size], dtype).reshape(tensor["shape"])
        offset += size
    return arrays


def encode(model: str, arrays: Arrays) -> Response:
    outputs = [
        {
            "name": name,
            "datatype": TYPE_NAMES[array.dtype],
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in arrays.items()
    ]
    header = json.dumps({"model_name": model, "model_version": "1", "outputs": outputs}).encode()
    return Response(
        header + b"".join(array.tobytes() for array in arrays.values()),
        media_type="application/octet-stream",
        headers={HEADER_LENGTH: str(len(header))},
    )


def build(repository: Path, ingress_replicas: int) -> Any:
    models = {IDENTITY: deployment(IdentityModel, IDENTITY).bind(64, 0.0)}
    for name in ("simple", EFFICIENTNET):
        file = repository / name / "1" / "model.onnx"
        if file.exists():
            config = read_config(repository, name)
            threads = int(config.parameters["intra_op_thread_count"].string_value or 0)
            heavy = name == EFFICIENTNET
            models[name] = deployment(OnnxModel, name).bind(str(file), config.max_batch_size, threads, heavy)
    return deployment(serve.ingress(web)(Ingress), "ingress", ingress_replicas).bind(**models)


def deployment(cls: Any, name: str, replicas: int = 1) -> Any:
    return serve.deployment(
        cls,
        name=name,
        num_replicas=replicas,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={"num_cpus": 0},
        logging_config={"enable_access_log": False},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--temp-dir", required=True)
    parser.add_argument("--ingress-replicas", type=int, default=1)
    arguments = parser.parse_args()
    ray.init("local", _temp_dir=arguments.temp_dir, include_dashboard=False, num_cpus=4, log_to_driver=False)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    serve.start(
        proxy_location=ProxyLocation.HeadOnly,
        http_options=HTTPOptions(host="127.0.0.1", port=arguments.port),
    )
    serve.run(build(arguments.repository.resolve(), arguments.ingress_replicas), name="plain")
    stopped.wait()
    ray.shutdown()  # with the cluster; `serve.shutdown` would first drain for 30 s


if __name__ == "__main__":
    main()
