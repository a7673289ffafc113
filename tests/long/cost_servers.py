"""The servers of the suite of costs: their models, their tokens."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.access.tokens import encode, make_token, new_secret
from tests.server import ROOT, Server

TOKENS: Final = ("three", "one", "calls", "two")

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


def body(model: str, rows: int, value: float = 1.0, name: str = "") -> str:
    """Return a request of some rows, all of one value, with an id if it has one."""
    tensor = "INPUT0" if model == "same" else "X"
    inputs = [{"name": tensor, "shape": [rows, 4], "datatype": "FP32", "data": [value] * 4 * rows}]
    return json.dumps({"inputs": inputs} | ({"id": name} if name else {}))


@contextmanager
def serving(
    place: Path, dev: bool, *flags: str, root: Path = ROOT, env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server over the models of a directory, from a copy if one is given."""
    server = Server([], place / f"server{len(list(place.iterdir()))}.log", env)
    server.directory = root
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
