"""Models of the long suites of rollouts: whose candidates are bad in different ways, and who calls them."""

from pathlib import Path
from typing import Any, Final, NamedTuple

WAYS: Final = ("http", "grpc", "ensemble", "bls")
"""How requests come to a model: by clients of two protocols, or by a model that calls it."""
HANGS: Final = "time.sleep(3600)"
_TENSORS: Final = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "BY" data_type: TYPE_INT32 dims: [ 1 ] }
"""
_SOURCE: Final = """
import os, random, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.version = int(args["model_version"])
        self.asked = 0
        {load}

    def execute(self, requests):
        answers = [self.answer(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()) for r in requests]
        {execute}
        return answers

    def answer(self, x):
        self.asked += 1
        time.sleep({seconds})
        out = {{"OUT": x, "BY": np.full((len(x), 1), self.version, np.int32)}}
        {answer}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in out.items()])
"""
_CALLER: Final = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "IN")
        wanted = ["OUT", "BY"]
        call = pb_utils.InferenceRequest(
            model_name="{model}", requested_output_names=wanted, inputs=[x]
        )
        answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
"""
_ENSEMBLE: Final = """
platform: "ensemble" max_batch_size: 8
{tensors}
ensemble_scheduling {{ step {{ model_name: "{model}" model_version: -1
  input_map {{ key: "IN" value: "IN" }}
  output_map {{ key: "OUT" value: "OUT" }} output_map {{ key: "BY" value: "BY" }} }} }}
"""


class Candidate(NamedTuple):
    """A version: statements of its source, more of the policy, and how its rollout has to end.

    Attributes:
        answer: what each request does.
        load: what loading does.
        execute: what each batch does in the end.
        policy: fields of the policy.
        ends: the state in which the rollout ends.
        limit_s: how long that may take.
        deadline_s: how long clients wait; 0 for as long as it takes.
        slow: whether its durations are the fault: then the stable version takes 30 ms, and one model is asked
            in all ways.
        errors: whether clients may see errors.
        alone: whether it needs all requests that there are: then its models are tried one after another.
        ways: how requests come to it.
    """

    answer: str = "pass"
    load: str = "pass"
    execute: str = "pass"
    policy: dict[str, Any] = {}
    ends: str = "failed"
    limit_s: float = 20.0
    deadline_s: float = 0.0
    slow: bool = False
    errors: bool = False
    alone: bool = False
    ways: tuple[str, ...] = WAYS


_RULES: Final = {"min_agreement": 0.99, "outputs": {"BY": "ignore"}}
_MIRRORED: Final = {"mirror": 50, "judge": {"output": _RULES}}
_REFUSES: Final = "return pb_utils.InferenceResponse(error=pb_utils.TritonError('no'{code}))"
_SPREAD: Final = "0.03 * random.lognormvariate(0, 0.1)"
GOOD: Final = Candidate(ends="done", limit_s=60, policy={"step": {"min_seconds": 8, "min_requests": 50}})
CANDIDATES: Final = {
    "raises": Candidate("raise ValueError('no')"),
    "raises, 10 %": Candidate("assert self.asked % 10", alone=True),
    "TritonError": Candidate(_REFUSES.format(code="")),
    "2 s slow": Candidate("time.sleep(2)"),
    # Calls of Python models are not mirrored.
    "NaN, mirrored": Candidate("out['OUT'] = x * np.nan", policy=_MIRRORED, ways=WAYS[:3]),
    "exits": Candidate("os._exit(1)"),
    "hangs": Candidate(HANGS),
    "hangs, deadlines": Candidate(HANGS, deadline_s=4.0),
    "hangs, clients see it": Candidate(HANGS, policy={"on_error": "none"}, deadline_s=15.0, errors=True),
    "missing": Candidate("del out['OUT']"),
    "misnamed": Candidate("out['OUTX'] = out.pop('OUT')"),
    "other shape": Candidate("out['OUT'] = x[:, :2]"),
    "other type": Candidate("out['OUT'] = x.astype(np.int64)"),
    "returns None": Candidate(execute="return None"),
    "400 to all": Candidate(_REFUSES.format(code=", pb_utils.TritonError.INVALID_ARG")),
    "does not load": Candidate(load="raise ValueError('no weights')"),
    "twice as slow": Candidate(f"time.sleep({_SPREAD})", limit_s=120, slow=True),
    "1.5 times slower": Candidate(f"time.sleep(0.5 * {_SPREAD})", limit_s=600, slow=True),
    # Each version answers `BY` with its own number; the largest of `OUT` is as clients ask.
    "other classes": Candidate(policy={"judge": {"drift": {"output": "BY"}}}, limit_s=60, ways=WAYS[:3]),
    "good, by classes": GOOD._replace(policy={**GOOD.policy, "judge": {"drift": {}}}),
    "good": GOOD,
}


class Model(NamedTuple):
    """A model of a repository, how it is asked, and how long a request takes."""

    name: str
    way: str
    slow: bool = False

    @property
    def asked(self) -> str:
        """The model that clients ask."""
        return self.name if self.way in ("http", "grpc") else f"{self.name}_by_{self.way}"

    def create(self, repository: Path) -> None:
        """Write the first version, if it is not there, and who calls it."""
        if not (repository / self.name).exists():
            self.write(repository, 1, Candidate())
        if self.asked == self.name:
            return
        directory = repository / self.asked
        (directory / "1").mkdir(parents=True)
        if self.way == "ensemble":
            config = _ENSEMBLE.format(tensors=_TENSORS, model=self.name)
        else:
            config = _config(8)
            (directory / "1" / "model.py").write_text(_CALLER.format(model=self.name))
        (directory / "config.pbtxt").write_text(config)

    def write(self, repository: Path, version: int, candidate: Candidate) -> None:
        """Write a version."""
        directory = repository / self.name / str(version)
        directory.mkdir(parents=True)
        (repository / self.name / "config.pbtxt").write_text(_config(8 if self.slow else 1))
        parts = candidate._asdict()
        source = _SOURCE.format(seconds=_SPREAD if self.slow else 0.002, **parts)
        (directory / "model.py").write_text(source)


def _config(instances: int) -> str:
    group = f"instance_group {{ count: {instances} kind: KIND_CPU }}"
    return f'backend: "python" max_batch_size: 8 {group}\n{_TENSORS}'
