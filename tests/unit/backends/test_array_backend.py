"""Joining and splitting batches, with a backend that records what it is given."""

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, FailureReason
from app.core.tensors import SMALL, Tensor
from app.transport.memory.shared_pool import SharedBufferPool
from backends.array_backend import ArrayBackend
from backends.base import Instance
from tests.unit.backend_harness import Served, config, infer

PLAIN = """
    name: "m" max_batch_size: 8
    input { name: "I" data_type: TYPE_FP32 dims: 4 }
    output { name: "O" data_type: TYPE_FP32 dims: 4 }
    output { name: "P" data_type: TYPE_FP32 dims: 4 }
"""


class Recorder(ArrayBackend):
    """Doubles I into O and negates it into P; refuses values above 100."""

    def load(self, instance: Instance) -> list[tuple[dict[str, Any], list[str]]]:
        return []

    def execute(
        self, loaded: Any, inputs: Mapping[str, np.ndarray[Any, Any]], outputs: Sequence[str]
    ) -> dict[str, np.ndarray[Any, Any]]:
        loaded.append((dict(inputs), list(outputs)))
        array = inputs["I"]
        if array.dtype.kind == "f" and (array > 100).any():
            raise RuntimeError("too large\nand a second line")
        return {"O": array * 2, "P": -array}


def rows(*values: float) -> Any:
    return np.array([[value] * 4 for value in values], np.float32)


def test_one_request_is_not_copied() -> None:
    served = Served(Recorder, config(PLAIN))
    data = rows(1).tobytes()
    (call,) = served(infer({"I": Tensor("I", "FP32", (1, 4), data)}, id="7"))
    assert np.shares_memory(served.instance.state[0][0]["I"], np.frombuffer(data, np.uint8))
    assert call.arrays["O"].tolist() == rows(2).tolist()
    assert (call.responses[0].id, call.responses[0].model_name, call.responses[0].model_version) == (
        "7",
        "m",
        "1",
    )


def test_memory_stays_while_the_backend_holds_an_input() -> None:
    """It is a part of shared memory, say, which is written again as soon as nobody views it."""
    served = Served(Recorder, config(PLAIN))
    pool = SharedBufferPool(1 << 16)
    taken = pool.allocate(1 << 16)
    assert taken is not None
    taken[:16] = rows(1).tobytes()
    served(infer({"I": Tensor("I", "FP32", (1, 4), taken[:16])}))
    del taken
    gc.collect()  # the request
    assert pool.live == 1
    served.instance.state.clear()
    assert pool.live == 0


@pytest.mark.parametrize(
    ("reshape", "shapes"),
    [("", [(1, 4), (3, 4), (1, 4)]), ("reshape { shape: [2, 2] }", [(1, 2, 2), (3, 2, 2), (1, 2, 2)])],
)
def test_inputs_are_joined_where_the_backend_wants_them(reshape: str, shapes: list[tuple[int, ...]]) -> None:
    """One request alone too; from the next batch on it may hold something else."""
    text = PLAIN.replace("dims: 4 }", f"dims: 4 {reshape} }}")
    served = Served(Recorder, config(text))
    block, asked = np.zeros(64, np.float32), []

    def place(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        asked.append(shape)
        assert name == "I" and dtype == np.float32
        return np.ndarray(shape, dtype, block)

    served.instance.merged_inputs = place
    for batch in ([(1.0,)], [(2.0,), (3.0, 4.0)], [(5.0,)]):
        calls = served(*(infer({"I": rows(*values)}) for values in batch))
        assert [call.arrays["O"].tolist() for call in calls] == [(2 * rows(*v)).tolist() for v in batch]
    assert asked == shapes
    assert all(np.shares_memory(inputs["I"], block) for inputs, _ in served.instance.state)


def test_batch_is_executed_once_and_each_gets_its_rows() -> None:
    served = Served(Recorder, config(PLAIN))
    calls = served(infer({"I": rows(1)}), infer({"I": rows(2, 3)}), infer({"I": rows(4)}))
    assert len(served.instance.state) == 1
    assert [call.arrays["O"][:, 0].tolist() for call in calls] == [[2], [4, 6], [8]]
    assert served.instance.compute_end_ns >= served.instance.compute_start_ns > 0


def test_responses_expose_only_their_own_rows() -> None:
    served = Served(Recorder, config(PLAIN))
    for call in served(infer({"I": rows(1)}), infer({"I": rows(2)})):
        assert [len(tensor.data) for tensor in call.responses[0].outputs] == [16, 16]


def test_only_requested_outputs_in_configuration_order() -> None:
    served = Served(Recorder, config(PLAIN))
    calls = served(infer({"I": rows(1)}, ["P"]), infer({"I": rows(2)}, ["P", "O"]))
    assert [list(call.arrays) for call in calls] == [["P"], ["O", "P"]]
    served(infer({"I": rows(1)}, ["P"]), infer({"I": rows(2)}, ["P"]))
    assert served.instance.state[-1][1] == ["P"]


def test_only_the_culprit_of_a_batch_fails() -> None:
    served = Served(Recorder, config(PLAIN))
    good, bad, other = served(infer({"I": rows(1)}), infer({"I": rows(101)}), infer({"I": rows(3)}))
    assert bad.error == "too large"
    assert bad.responses[0].failure is not None
    assert bad.responses[0].failure.code is ErrorCode.INTERNAL
    assert bad.responses[0].failure.reason is FailureReason.BACKEND
    assert good.arrays["O"][0, 0] == 2
    assert other.arrays["O"][0, 0] == 6


def test_inputs_in_another_order_are_joined_by_name() -> None:
    text = PLAIN.replace("dims: 4 }", 'dims: 4 } input { name: "J" data_type: TYPE_INT8 dims: 1 }', 1)
    served = Served(Recorder, config(text))
    served(
        infer({"I": rows(1), "J": np.array([[1]], np.int8)}),
        infer({"J": np.array([[2]], np.int8), "I": rows(2)}),
    )
    (inputs, _), *rest = served.instance.state
    assert not rest
    assert inputs["J"].tolist() == [[1], [2]]
    assert inputs["I"][:, 0].tolist() == [1, 2]


@pytest.mark.parametrize(
    "other", [{"I": np.ones((1, 5), np.float32)}, {"J": rows(1)}, {"I": np.ones((1, 4), "i4")}]
)
def test_requests_that_do_not_belong_together_are_executed_alone(other: dict[str, Any]) -> None:
    served = Served(Recorder, config(PLAIN))
    good, odd = served(infer({"I": rows(1)}), infer(other))
    assert good.arrays["O"][0, 0] == 2
    assert odd.error


def test_large_batches_are_joined() -> None:
    served = Served(Recorder, config(PLAIN.replace("dims: 4", "dims: -1")))
    size = 40_000
    calls = served(*(infer({"I": np.full((1, size), n, np.float32)}) for n in (1, 2)))
    assert [call.arrays["O"].sum() for call in calls] == [2 * size, 4 * size]


def test_without_batching_each_request_is_executed_alone_in_its_full_shape() -> None:
    served = Served(Recorder, config(PLAIN.replace("max_batch_size: 8", "")))
    calls = served(*(infer({"I": np.full(4, n, np.float32)}) for n in (1, 2)))
    assert [inputs["I"].shape for inputs, _ in served.instance.state] == [(4,), (4,)]
    assert [call.arrays["O"].tolist() for call in calls] == [[2] * 4, [4] * 4]


def test_reshape_applies_to_inputs_and_back_to_outputs() -> None:
    text = """
        name: "m" max_batch_size: 8
        input { name: "I" data_type: TYPE_FP32 dims: [ 1, -1 ] reshape { shape: [ -1, 1, 1 ] } }
        output { name: "O" data_type: TYPE_FP32 dims: [ -1 ] reshape { shape: [ -1, 1, 1 ] } }
    """
    served = Served(Recorder, config(text))
    (alone,) = served(infer({"I": np.ones((2, 1, 3), np.float32)}))
    assert served.instance.state[0][0]["I"].shape == (2, 3, 1, 1)
    assert alone.arrays["O"].shape == (2, 3)
    calls = served(*(infer({"I": np.ones((n, 1, 3), np.float32)}) for n in (1, 2)))
    assert [call.arrays["O"].shape for call in calls] == [(1, 3), (2, 3)]


def test_empty_reshape_gives_one_value_a_row() -> None:
    text = """
        name: "m" max_batch_size: 8
        input { name: "I" data_type: TYPE_FP32 dims: 1 reshape { } }
        output { name: "O" data_type: TYPE_FP32 dims: 1 reshape { } }
    """
    served = Served(Recorder, config(text))
    (call,) = served(infer({"I": np.ones((2, 1), np.float32)}))
    assert served.instance.state[0][0]["I"].shape == (2,)
    assert call.arrays["O"].shape == (2, 1)


def test_strings_in_and_out() -> None:
    text = PLAIN.replace("TYPE_FP32", "TYPE_STRING").replace("dims: 4", "dims: 2")

    class Upper(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            upper = np.array([[e.upper() for e in row] for row in inputs["I"]], dtype=object)
            return {"O": upper, "P": np.char.add(np.full(upper.shape, "p"), "q")}

    served = Served(Upper, config(text))
    first = np.array([[b"ab", b""]], dtype=object)
    calls = served(infer({"I": first}), infer({"I": np.array([[b"x\xff", b"y"]], dtype=object)}))
    assert [call.arrays["O"].tolist() for call in calls] == [[[b"AB", b""]], [[b"X\xff", b"Y"]]]
    assert calls[0].arrays["P"].tolist() == [[b"pq", b"pq"]]


def test_malformed_strings_fail_alone() -> None:
    text = PLAIN.replace("TYPE_FP32", "TYPE_STRING")

    class Same(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            return {"O": inputs["I"], "P": inputs["I"]}

    served = Served(Same, config(text))
    good = infer({"I": np.array([[b"a"] * 4], dtype=object)})
    lying = infer({"I": Tensor("I", "BYTES", (1, 4), b"\xff\xff\xff\x7fabc")})
    calls = served(good, lying)
    assert calls[0].arrays["O"].tolist() == [[b"a"] * 4]
    assert calls[1].error == "incomplete string data"


@pytest.mark.parametrize(
    ("produced", "text"),
    [
        ({"P": rows(1)}, "model 'm' did not produce output 'O'"),
        ({"O": rows(1).astype(np.float64), "P": rows(1)}, "unexpected datatype for output 'O'"),
        ({"O": rows(1)[:, :3], "P": rows(1)}, r"expects \[-1,4\], model provides \[1,3\]"),
    ],
)
def test_outputs_that_contradict_the_configuration(produced: dict[str, Any], text: str) -> None:
    class Wrong(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            return produced

    (call,) = Served(Wrong, config(PLAIN))(infer({"I": rows(1)}))
    with pytest.raises(AssertionError, match=text):
        call.arrays  # noqa: B018


def test_each_shape_of_an_output_is_compared() -> None:
    class Growing(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            loaded.append(None)
            return {"O": rows(1), "P": np.ones((1, 4 if len(loaded) < 3 else 5), np.float32)}

    served = Served(Growing, config(PLAIN))
    assert [served(infer({"I": rows(1)}))[0].arrays["P"].shape for _ in range(2)] == [(1, 4)] * 2
    assert "expects [-1,4], model provides [1,5]" in served(infer({"I": rows(1)}))[0].error


@pytest.mark.parametrize("count", [1, 1000])
def test_large_outputs_are_not_copied(count: int) -> None:
    made = np.ones((count, 4), np.float32)

    class Keeping(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            return {"O": made, "P": made}

    found = Served(Keeping, config(PLAIN))(infer({"I": made}))[0].arrays["O"]
    assert np.shares_memory(found, made) == (made.nbytes > SMALL)


def test_too_few_output_rows_fail_the_batch() -> None:
    class Short(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            array = inputs["I"][:1]
            return {"O": array, "P": array}

    calls = Served(Short, config(PLAIN))(infer({"I": rows(1)}), infer({"I": rows(2)}))
    # Joined they do not fit; alone each gets what was made from its own data.
    assert [call.arrays["O"][0, 0] for call in calls] == [1, 2]


def test_empty_and_discontiguous_outputs() -> None:
    class Odd(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            return {"O": inputs["I"].T.copy().T, "P": inputs["I"]}

    served = Served(Odd, config(PLAIN))
    assert served(infer({"I": rows(1, 2)}))[0].arrays["O"].tolist() == rows(1, 2).tolist()
    (call,) = served(infer({"I": np.zeros((0, 4), np.float32)}))
    assert call.arrays["O"].shape == (0, 4)


def test_states_are_part_of_every_response() -> None:
    text = (
        PLAIN
        + 'sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 4 } }'
    )

    class Stateful(Recorder):
        def execute(self, loaded: Any, inputs: Any, outputs: Any) -> Any:
            assert "T" in outputs
            return {name: inputs["I"] for name in outputs}

    (call,) = Served(Stateful, config(text))(infer({"I": rows(5)}, ["O"]))
    assert list(call.arrays) == ["O", "T"]
