"""Compares the answers of an old server with those of Nereid, to the requests that old clients send."""

import json
import math
import random
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

from nereid.migrate.plan import MigrationError

RELATIVE: Final = 1e-4
ABSOLUTE: Final = 1e-6
"""Tolerances: TensorFlow Serving writes six digits of a number."""
_TIMEOUT_S: Final = 60.0
_MAX_ANSWER: Final = 256 << 20
_MAX_ERROR: Final = 400
_SIZE: Final = 2
"""Of dimensions that may have any."""
_ROWS: Final = 16
"""Of a v2 request, where the model takes so many: classes of few rows are easily equal by chance."""
_INTEGERS: Final = ("INT", "UINT", "DT_INT", "DT_UINT")
_FLOATS: Final = ("FP", "BF", "DT_FLOAT", "DT_DOUBLE", "DT_HALF", "DT_BFLOAT")


class Request(NamedTuple):
    """A request to both servers; without a body it is a GET."""

    path: str
    body: bytes
    content_type: str = "application/json"


class Comparison(NamedTuple):
    """What came of a comparison; `difference` is "" for equal answers."""

    model: str
    path: str
    difference: str


def ask(url: str, request: Request) -> bytes:
    """Send a request; return the body of its answer.

    Raises:
        MigrationError: there is no answer, or an error.
    """
    address = f"{url if '://' in url else f'http://{url}'}{request.path}"
    message = urllib.request.Request(address, request.body or None, {"Content-Type": request.content_type})
    if message.type not in ("http", "https"):
        raise MigrationError(f"{url} is no http:// or https:// address")
    try:
        with urllib.request.urlopen(message, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read(_MAX_ANSWER))
    except urllib.error.HTTPError as error:
        text = error.read(_MAX_ERROR).decode("utf-8", "replace").strip()
        raise MigrationError(f"{address} answers with {error.code}: {text}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)  # of an error of urllib
        raise MigrationError(
            f"{address} does not answer: {getattr(reason, 'strerror', '') or reason}"
        ) from None


def compare(model: str, request: Request, old: str, new: str) -> Comparison:
    """Send a request to both servers, and compare their answers."""
    try:
        answers = [ask(url, request) for url in (old, new)]
    except MigrationError as error:
        return Comparison(model, request.path, str(error))
    return Comparison(model, request.path, difference(*answers))


def compare_v2(model: str, request: Request, old: str, new: str) -> Comparison:
    """As `compare`, of v2 inferences: the old server's outputs by name, without what names versions."""
    try:
        one, other = (outputs_of(ask(url, request)) for url in (old, new))
    except MigrationError as error:
        return Comparison(model, request.path, str(error))
    # Of a request that names no outputs MLServer answers one alone.
    shared = {name: other[name] for name in other if name in one}
    return Comparison(model, request.path, _difference(one, shared, "answer"))


def difference(old: bytes, new: bytes) -> str:
    """Return where two answers differ; "" if they are equal, numbers within the tolerances."""
    if old == new:
        return ""
    try:
        one, other = (json.loads(answer) for answer in (old, new))
    except ValueError:
        return f"{len(old)} bytes, and {len(new)} others"
    return _difference(one, other, "answer")


def _difference(old: Any, new: Any, place: str) -> str:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (old, new))
    if numbers:
        equal = math.isclose(old, new, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (old != old and new != new)
        return "" if equal else f"{place}: {old} and {new}"
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = ((f"{place}[{i}]", *pair) for i, pair in enumerate(zip(old, new, strict=True)))
    elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        pairs = ((f"{place}.{key}", old[key], new[key]) for key in old)
    else:
        return "" if old == new else f"{place}: {str(old)[:100]} and {str(new)[:100]}"
    return next(filter(None, (_difference(one, other, where) for where, one, other in pairs)), "")


def tfserving_request(model: str, old: str) -> Request:
    """Return a prediction with made-up inputs, after the old server's metadata."""
    metadata = json.loads(ask(old, Request(f"/v1/models/{model}/metadata", b"")))
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    name = "serving_default" if "serving_default" in signatures else min(signatures)
    inputs = {}
    for tensor, info in sorted(signatures[name]["inputs"].items()):
        sizes = [int(dim["size"]) for dim in info["tensor_shape"].get("dim", [])]
        inputs[tensor] = _values(
            info["dtype"], [_SIZE if size < 0 else size for size in sizes], random.Random(tensor)
        )
    body = {"signature_name": name, "inputs": inputs}
    return Request(f"/v1/models/{model}:predict", json.dumps(body).encode())


def v2_request(model: str, new: str) -> Request:
    """Return an inference with made-up inputs, after the new server's metadata and configuration."""
    metadata, config = (
        json.loads(ask(new, Request(f"/v2/models/{model}{what}", b""))) for what in ("", "/config")
    )
    rows = min(config["max_batch_size"] or _ROWS, _ROWS)
    inputs = []
    for tensor in metadata["inputs"]:
        sizes = [rows, *(_SIZE for _ in tensor["shape"][1:])]
        shape = [made if size < 0 else size for made, size in zip(sizes, tensor["shape"], strict=True)]
        # Flat: of nested values MLServer makes no columns of a table.
        values = _values(tensor["datatype"], [math.prod(shape)], random.Random(tensor["name"]))
        inputs.append(
            {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": values}
        )
    outputs = [{"name": tensor["name"]} for tensor in metadata["outputs"]]
    body = {"inputs": inputs, "outputs": outputs}
    return Request(f"/v2/models/{model}/infer", json.dumps(body).encode())


def outputs_of(answer: bytes) -> dict[str, Any]:
    """Return the shapes and values of a v2 answer's outputs by name."""
    return {output["name"]: [output["shape"], output["data"]] for output in json.loads(answer)["outputs"]}


def torchserve_request(model: str, file: Path) -> Request:
    """Return a prediction with the content of a file."""
    kinds = {".json": "application/json", ".txt": "text/plain"}
    kind = kinds.get(file.suffix, "application/octet-stream")
    return Request(f"/predictions/{model}", file.read_bytes(), kind)


def _values(datatype: str, shape: list[int], numbers: random.Random) -> Any:
    if shape:
        return [_values(datatype, shape[1:], numbers) for _ in range(shape[0])]
    if datatype.startswith(_FLOATS):
        return round(numbers.uniform(-2, 2), 3)
    if datatype.startswith(_INTEGERS):
        return numbers.randrange(10)
    return numbers.random() < 0.5 if datatype in ("BOOL", "DT_BOOL") else f"text {numbers.randrange(10)}"
