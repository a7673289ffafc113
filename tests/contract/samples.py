"""Requests that more than one file of cases sends."""

from collections.abc import Sequence

import numpy as np

from tests.contract.drivers import Driver, Input, Output, Response, StreamRequest


def simple_inputs(rows: int = 1, binary: bool = True) -> list[Input]:
    """INPUT0 counts from 0 up, INPUT1 is all ones."""
    counting = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16)
    return [
        Input("INPUT0", counting, "INT32", binary=binary),
        Input("INPUT1", np.ones_like(counting), "INT32", binary=binary),
    ]


def check_simple(client: Driver, rows: int = 1) -> None:
    """A correct request to `simple` is answered correctly."""
    inputs = simple_inputs(rows)
    check_sum_and_difference(client.infer("simple", inputs), inputs)


def check_sum_and_difference(response: Response, inputs: Sequence[Input]) -> None:
    first, second = (tensor.array for tensor in inputs)
    np.testing.assert_array_equal(response.array("OUTPUT0"), first + second)
    np.testing.assert_array_equal(response.array("OUTPUT1"), first - second)


def strings(*values: bytes) -> np.ndarray:
    """One row of BYTES elements."""
    return np.array([values], dtype=np.object_)


def image_batch(rows: int) -> Input:
    """Noise, the same for the same number of rows."""
    pixels = np.random.default_rng(rows).standard_normal((rows, 3, 224, 224), dtype=np.float32)
    return Input("input", pixels, "FP32")


def repeat(
    values: Sequence[int], request_id: str = "", delay_ms: int = 0, **options: object
) -> StreamRequest:
    """A request to repeat_int32: one response a value, each `delay_ms` after the one before."""
    inputs = [
        Input("IN", np.array(values, np.int32), "INT32"),
        Input("DELAY", np.full(len(values), delay_ms, np.uint32), "UINT32"),
        Input("WAIT", np.zeros(1, np.uint32), "UINT32"),
    ]
    return StreamRequest("repeat_int32", inputs, options={"request_id": request_id, **options})


def square(count: int, request_id: str = "", **options: object) -> StreamRequest:
    """A request to square_int32: `count` responses of the value `count`."""
    inputs = [Input("IN", np.array([count], np.int32), "INT32")]
    return StreamRequest("square_int32", inputs, options={"request_id": request_id, **options})


def simple(request_id: str = "", outputs: Sequence[Output] = ()) -> StreamRequest:
    """A request to `simple` on a stream."""
    return StreamRequest("simple", simple_inputs(), outputs, {"request_id": request_id})
