"""A stand-in for the programs `simple_http_infer_client` and `simple_grpc_infer_client` of tritonserver's QA.

They are in images of its clients, and ask a model `simple` for the sum and the difference of two rows.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import numpy as np

PORTS: Final = {"http": 8000, "grpc": 8001}


def main(argv: Sequence[str]) -> int:
    """Ask once; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.qa_client", description=__doc__)
    parser.add_argument("protocol", choices=PORTS)
    parser.add_argument("-u", "--url", default="")
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args(argv)
    module = _module(given.protocol)
    url = given.url or f"localhost:{PORTS[given.protocol]}"
    rows = {"INPUT0": np.arange(16, dtype=np.int32), "INPUT1": np.ones(16, np.int32)}
    with module.InferenceServerClient(url, verbose=given.verbose) as client:
        result = client.infer("simple", [_input(module, name, row) for name, row in rows.items()])
    first, second = rows.values()
    right = (result.as_numpy("OUTPUT0") == first + second).all()
    right = right and (result.as_numpy("OUTPUT1") == first - second).all()
    print("PASS : Infer" if right else "error: incorrect sum or difference")
    return int(not right)


def _module(protocol: str) -> ModuleType:
    return import_module(f"tritonclient.{protocol}")


def _input(module: ModuleType, name: str, row: Any) -> Any:
    made = module.InferInput(name, [1, 16], "INT32")
    made.set_data_from_numpy(row[None])
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
