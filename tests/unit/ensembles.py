"""Configurations of ensembles, and models that answer when the test says so."""

import asyncio
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ensemble.runner import EnsembleRunner
from app.routing.table import ModelState, RoutingTable, VersionEntry
from tests.unit.composed import Composed

FP32 = "data_type: TYPE_FP32 dims: [ 4 ]"


def step(inputs: dict[str, str], outputs: dict[str, str], model: str, version: int = -1) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble(
    *steps: str, inputs: str = "IN", outputs: str = "OUT", more: str = "", batch: int = 0, limit: int = 0
) -> str:
    """An ensemble of FP32[4] tensors; `inputs` and `outputs` are names with blanks between."""
    ios = [f'input {{ name: "{name}" {FP32} }}' for name in inputs.split()]
    ios += [f'output {{ name: "{name}" {FP32} }}' for name in outputs.split()]
    return (
        f'platform: "ensemble" max_batch_size: {batch} {" ".join(ios)} {more} '
        f"ensemble_scheduling {{ {' '.join(steps)} max_inflight_requests: {limit} }}"
    )


def model(inputs: str = "x", outputs: str = "y", more: str = "", batch: int = 0) -> str:
    """A model of FP32[4] tensors; a name with a "?" behind is an optional input."""
    ios = []
    for name in inputs.split():
        optional = "optional: true" if name.endswith("?") else ""
        ios.append(f'input {{ name: "{name.rstrip("?")}" {FP32} {optional} }}')
    ios += [f'output {{ name: "{name}" {FP32} }}' for name in outputs.split()]
    return f'backend: "identity" max_batch_size: {batch} {" ".join(ios)} {more}'


DECOUPLED = "model_transaction_policy { decoupled: true }"


def entry(
    name: str, config: str, version: int = 1, state: ModelState = ModelState.READY, **fields: Any
) -> VersionEntry:
    message = text_format.Parse(config, mc.ModelConfig(name=name))
    fields.setdefault("application", "" if message.platform == "ensemble" else f"{name}:{version}")
    return VersionEntry(name, version, state, config=message.SerializeToString(), **fields)


def tensor(name: str = "IN", shape: tuple[int, ...] = (4,), fill: int = 1) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return Tensor(name, "FP32", shape, bytes([fill]) * (4 * count))


class Asked:
    """A request that reached a model."""

    def __init__(self, request: InferRequest, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.cancelled = self.advised = False

    def cancel(self, advice: bool = False) -> None:
        if advice:
            self.advised = True
        else:
            self.cancelled = True

    @property
    def data(self) -> dict[str, Any]:
        return {tensor.name: tensor.data for tensor in self.request.inputs}

    def answer(self, *outputs: Tensor, final: bool = True, error: InferError | None = None) -> None:
        failure = error.failure if error is not None else None
        self.sink(InferResponse(self.request.model_name, "1", outputs, "", {}, final, failure))


class Models(Composed):
    """Routes ensembles to a runner, and holds the requests of all other models."""

    def __init__(self, **configs: str) -> None:
        self.table = RoutingTable(1, True, tuple(entry(name, config) for name, config in configs.items()))
        self.ensembles = EnsembleRunner(self)
        self.asked: list[Asked] = []
        self.responses: list[InferResponse] = []
        self.out: set[str] = set()
        self.resolved: list[str] = []

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        self.resolved.append(name)
        return self.table.resolve(name, version)

    def available(self, found: VersionEntry) -> bool:
        return self.ensembles.available(found) if found.ensemble else found.name not in self.out

    def submit(self, found: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        if found.ensemble:
            return self.ensembles.start(found, request, sink)
        self.asked.append(Asked(request, sink))
        return self.asked[-1]

    def infer(self, *inputs: Tensor, name: str = "e", **fields: Any) -> Call:
        """Send a request; its responses go to `responses`."""
        request = InferRequest(name, "", inputs, **fields)
        return self.resolve(name).target.submit(request, self.responses.append)

    def waiting(self) -> list[str]:
        """Names of the models that have a request, in the order of the requests."""
        return [asked.request.model_name for asked in self.asked]

    def take(self, name: str) -> Asked:
        """The oldest request of a model."""
        found = next(asked for asked in self.asked if asked.request.model_name == name)
        self.asked.remove(found)
        return found

    @property
    def error(self) -> str:
        """The message of the last response's error."""
        error = self.responses[-1].failure
        assert error is not None
        return error.message


CHAIN = ensemble(step({"x": "IN"}, {"y": "MID"}, "a"), step({"x": "MID"}, {"y": "OUT"}, "b"))
BRANCHES = ensemble(
    step({"x": "IN"}, {"y": "L"}, "a"),
    step({"x": "IN"}, {"y": "R"}, "b"),
    step({"l": "L", "r": "R"}, {"y": "OUT"}, "c"),
)


async def turn() -> None:
    """Let what was put off to the loop happen."""
    await asyncio.sleep(0)
