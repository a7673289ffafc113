"""What the README of the example shows is what its models answer."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.engine.engine import Engine
from nereid.engine.fronts import Fronts
from tests.contract.conftest import Addresses
from tests.contract.test_readme import moved, of_language, run, same
from tests.server import free_port

PAGE = "examples/text/README.md"


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Addresses]:
    http, grpc = free_port(), free_port()
    flags = {"http_port": http, "grpc_port": grpc, "allow_openai": True, "allow_metrics": False}
    with Engine.open(model_repository=[str(models)], **flags) as engine:
        fronts = Fronts(engine)
        fronts.open()
        yield Addresses(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")
        fronts.close(1)


def without_ids(text: str) -> str:
    return re.sub(r"rerank-[0-9a-f]{32}", "rerank-", text)


def test_curl_prints_what_is_written(server: Addresses) -> None:
    ((code, written),) = of_language("sh", PAGE)
    printed = run(["sh", "-c", moved(code, server)])
    assert same(without_ids(printed), without_ids(written)), printed


def test_python_prints_what_is_written(server: Addresses) -> None:
    ((code, written),) = of_language("python", PAGE)
    printed = run([sys.executable, "-c", moved(code, server)])
    assert same(printed, written), printed


def test_the_program_prints_what_is_written(server: Addresses) -> None:
    printed = run([sys.executable, "examples/text/ask.py", "--server", server.grpc])
    page = Path(PAGE).read_text()
    assert all(f"    {line}\n" in page for line in printed.splitlines()), printed
