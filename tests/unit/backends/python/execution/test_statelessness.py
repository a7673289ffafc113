"""Which Python models leave nothing behind that a later execution could find."""

import re
from pathlib import Path

import pytest

from backends.python.execution.event_loop_safety import is_safe_on_event_loop
from backends.python.execution.statelessness import is_stateless
from tests.unit.backends.python.execution.stateful_code import ELSEWHERE, IN_EXECUTE

EXAMPLES = Path(__file__).parents[5] / "model_repository"
MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
{outside}
CACHE = []
BUFFER = np.zeros(4)
TABLE = {{"a": [1]}}
{above}

class TritonPythonModel:
    {within}
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.count = 0
        self.kept = []
        self.buffer = np.zeros(4)
        {first}

    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            {line}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.square(array))]))
        return answers

    def helper(self, given):
        {more}
        return given

    def finalize(self):
        print("cleaning up")
"""
PLACES = {"outside": "", "above": "", "within": "", "first": "pass", "line": "pass", "more": "pass"}


def source(**places: str) -> bytes:
    indents = {name: spaces for spaces, name in re.findall(r"( *)\{(\w+)\}", MODEL)}
    indented = {name: text.replace("\n", "\n" + indents[name]) for name, text in places.items()}
    return MODEL.format(**PLACES | indented).encode()


def test_plain_computing_is_stateless() -> None:
    assert is_stateless(source())


@pytest.mark.parametrize(
    "line",
    [
        "array = array + self.buffer",
        "total = 0\ntotal += 1",
        "rows = np.zeros((2, 2), np.float32)\nrows[0] = array",
        "rows = np.empty_like(array)\nrows.fill(3)",
        "seen = {}\nseen['x'] = len(array)\nseen.update(self.config)",
        "names = [name.upper() for name in self.config.keys()]\nnames.append('x')",
        "array = np.clip(array, 0, 1).astype(np.uint8).reshape(-1)",
        "array = np.concatenate([array, self.buffer], axis=0)",
        "array = self.helper(array) if array.size else array.sum(axis=1, keepdims=True)",
        "first = self.kept[0] if self.kept else None",
        "for index, (left, right) in enumerate(zip(array, self.buffer)):\n    print(index, left, right)",
        "total = sum(x * x for x in array)",
        "text = ','.join(str(each) for each in array)",
        "if array.ndim > 5:\n    raise pb_utils.TritonModelException('no ' + str(array.shape))",
        "try:\n    array = array / 0\nexcept ValueError as error:\n    print(f'{error}')",
        "tensor = pb_utils.get_input_tensor_by_name(request, 'X')\narray = tensor.as_numpy()",
        "answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError('no')))",
    ],
)
def test_what_reads_is_stateless(line: str) -> None:
    assert is_stateless(source(line=line))


@pytest.mark.parametrize(
    "places",
    [
        {"outside": "from typing import List, Optional\nimport math", "line": "x: List = [math.exp(1)]"},
        {"above": "def double(x, by=2):\n    return x * by", "line": "array = double(array)"},
        {
            "above": "class Box:\n    def __init__(self, x):\n        self.x = x\n    def twice(self):\n"
            "        return self.x * 2",
            "line": "array = Box(array).x",
        },
        {"above": "class Wrong(Exception):\n    pass", "line": "if array is None:\n    raise Wrong('x')"},
        {"within": '"""About it."""\nSCALE = 2', "line": "array = array * self.SCALE"},
        {
            "within": "@staticmethod\ndef auto_complete_config(auto_complete_model_config):\n"
            "    auto_complete_model_config.add_input({'name': 'X'})\n"
            "    auto_complete_model_config.set_max_batch_size(0)\n    return auto_complete_model_config\n"
        },
        {"first": "self.left, self.right = 1, 2\nself.dtype = pb_utils.triton_string_to_numpy('TYPE_FP32')"},
    ],
)
def test_functions_classes_and_preparations_may_be_stateless(places: dict[str, str]) -> None:
    assert is_stateless(source(**places))


@pytest.mark.parametrize("line", IN_EXECUTE)
def test_executions_that_change_what_they_have_not_made_are_not(line: str) -> None:
    assert not is_stateless(source(line=line))


@pytest.mark.parametrize("places", ELSEWHERE)
def test_other_ways_to_keep_something_are_not(places: dict[str, str]) -> None:
    assert not is_stateless(source(**places))


def test_the_hostile_sources_are_python() -> None:
    for places in [*({"line": line} for line in IN_EXECUTE), *ELSEWHERE]:
        compile(source(**places), str(places), "exec", dont_inherit=True)


def test_what_may_not_be_on_the_loop_is_not_stateless() -> None:
    waits = source(outside="import time", line="time.sleep(1)")
    assert not is_safe_on_event_loop(waits) and not is_stateless(waits)


def test_an_example() -> None:
    assert is_stateless((EXAMPLES / "identity_fp32" / "1" / "model.py").read_bytes())


SUM_AND_DIFFERENCE = b"""
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        first = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
        second = pb_utils.get_output_config_by_name(model_config, "OUTPUT1")
        self.types = [pb_utils.triton_string_to_numpy(each["data_type"]) for each in (first, second)]

    def execute(self, requests):
        first_type, second_type = self.types
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1")
            total, difference = (a.as_numpy() + b.as_numpy(), a.as_numpy() - b.as_numpy())
            outputs = [
                pb_utils.Tensor("OUTPUT0", total.astype(first_type)),
                pb_utils.Tensor("OUTPUT1", difference.astype(second_type)),
            ]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
"""
PRODUCT = b"""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.ones((64, 64), np.float32)

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        products = [np.matmul(array, self.weights) @ self.weights for array in arrays]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in products]
"""


@pytest.mark.parametrize("plain", [SUM_AND_DIFFERENCE, PRODUCT])
def test_models_as_documentation_has_them(plain: bytes) -> None:
    assert is_stateless(plain)
