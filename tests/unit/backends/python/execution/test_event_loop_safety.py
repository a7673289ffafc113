"""Which Python models may execute on a thread that is not theirs."""

import ast
from pathlib import Path

import pytest

from backends.python.execution.event_loop_safety import is_safe_on_event_loop

EXAMPLES = Path(__file__).parents[5] / "model_repository"
MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
{imports}

class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            {line}
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.square(array))]))
        return answers
"""


def source(line: str = "pass", imports: str = "") -> bytes:
    return MODEL.format(line=line, imports=imports).encode()


def test_plain_computing_is_safe() -> None:
    assert is_safe_on_event_loop(source())
    assert is_safe_on_event_loop(source("array = array + len(self.config)", "from collections import deque"))
    assert is_safe_on_event_loop((EXAMPLES / "identity_fp32" / "1" / "model.py").read_bytes())


def test_plain_call_of_another_model_is_safe() -> None:
    assert is_safe_on_event_loop(source("pb_utils.InferenceRequest(model_name='other').exec()"))


@pytest.mark.parametrize(
    "line",
    [
        "pb_utils.InferenceRequest(model_name='other').exec(decoupled=True)",
        "pb_utils.InferenceRequest(model_name='other').exec(True)",
        "ask = pb_utils.InferenceRequest().exec",
        "getattr(pb_utils, 'Inference' + 'Request')",
        "utils = pb_utils",
        "self.call(pb_utils)",
        "request.get_response_sender()",
        "request.is_cancelled()",
        "np.seterr(all='ignore')",
        "np.__builtins__",
        "open('/dev/stdin').read()",
        "input()",
        "eval('1')",
        "__import__('time').sleep(1)",
        "import time",
        "from time import sleep",
        "from numpy import seterr",
        "from triton_python_backend_utils import InferenceRequest",
        "from . import helper",
        "import numpy.random",
        "import sqlite3",
        "yield 1",
    ],
)
def test_blocking_or_thread_local_code_is_unsafe(line: str) -> None:
    assert not is_safe_on_event_loop(source(line))


CALL = "pb_utils.InferenceRequest(model_name='other')"


def coroutine(line: str) -> bytes:
    return source(line, "import asyncio").replace(b"def execute", b"async def execute")


@pytest.mark.parametrize(
    "line",
    [
        "pass",
        f"await {CALL}.async_exec()",
        f"one = {CALL}.async_exec(); await one",
        f"await asyncio.gather({CALL}.async_exec(), {CALL}.async_exec())",
        f"await asyncio.gather(*[{CALL}.async_exec() for _ in range(3)], return_exceptions=True)",
    ],
)
def test_coroutines_that_await_calls_are_safe(line: str) -> None:
    assert is_safe_on_event_loop(coroutine(line))


@pytest.mark.parametrize(
    "line",
    [
        f"{CALL}.exec()",
        f"await {CALL}.async_exec(decoupled=True)",
        f"ask = {CALL}.async_exec",
        "await asyncio.sleep(1)",
        "await asyncio.to_thread(print)",
        f"asyncio.run({CALL}.async_exec())",
        f"task = asyncio.create_task({CALL}.async_exec())",
        f"self.later = asyncio.gather({CALL}.async_exec())",
        "gather = asyncio.gather",
        "wait(asyncio)",
        "self.lock = asyncio.Lock()",
        "from asyncio import sleep",
        "async for each in self: pass",
    ],
)
def test_coroutines_that_do_more_are_unsafe(line: str) -> None:
    assert not is_safe_on_event_loop(coroutine(line))


@pytest.mark.parametrize("name", ["repeat_int32", "image_preprocess"])
def test_examples_that_sleep_or_import_more_are_unsafe(name: str) -> None:
    assert not is_safe_on_event_loop((EXAMPLES / name / "1" / "model.py").read_bytes())


def test_a_source_is_parsed_again_where_python_says_it_has_lost_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [SystemError("AST constructor recursion depth mismatch (before=27, after=21)")]
    parse = ast.parse

    def failing(source: bytes) -> ast.AST:
        if failures:
            raise failures.pop()
        return parse(source)

    monkeypatch.setattr(ast, "parse", failing)
    assert is_safe_on_event_loop(source())
