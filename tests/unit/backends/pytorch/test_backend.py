"""TorchScript models, compiled here, through the pytorch backend."""

from pathlib import Path
from typing import Any, Dict, List, Tuple  # noqa: UP035  (TorchScript reads these)

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from app.core.errors import InferError
from app.core.tensors import Tensor
from backends.base import Instance
from backends.pytorch.backend import TorchBackend
from backends.pytorch.naming import input_arguments, output_indices
from tests.unit.backend_harness import Served, config, infer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class AddSub(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        return x + y, x - y


class FromDict(torch.nn.Module):
    def forward(self, x: Dict[str, torch.Tensor]) -> torch.Tensor:  # noqa: UP006
        return x["A"] - x["B"]


class Words(torch.nn.Module):
    def forward(self, x: List[str]) -> List[str]:  # noqa: UP006
        return [word + "!" for word in x]


class Lengths(torch.nn.Module):
    def forward(self, x: List[str]) -> torch.Tensor:  # noqa: UP006
        return torch.tensor([len(word) for word in x])


class Numbers(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> List[int]:  # noqa: UP006
        return [1, 2]


class NumbersBeside(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, List[torch.Tensor]]:  # noqa: UP006
        return x, [x]


class Keeps(torch.nn.Module):
    """Returns the same buffer each time, and changes its input."""

    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x)
        x.zero_()
        return self.kept


class Same(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def save(module: Any, folder: Path) -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    torch.jit.script(module).save(str(folder / "1" / "model.pt"))
    return folder


def add_sub(inputs: tuple[str, str], outputs: tuple[str, str], extra: str = "") -> str:
    ios = [f'input {{ name: "{name}" data_type: TYPE_FP32 dims: 2 }}' for name in inputs]
    ios += [f'output {{ name: "{name}" data_type: TYPE_FP32 dims: 2 }}' for name in outputs]
    return f'name: "x" backend: "pytorch" max_batch_size: 8 {" ".join(ios)} {extra}'


INDEXED = add_sub(("INPUT__0", "INPUT__1"), ("OUTPUT__0", "OUTPUT__1"))


def one(kind: str, dims: str = "dims: 2", batch: int = 8, extra: str = "") -> str:
    return f"""
        name: "x" backend: "pytorch" max_batch_size: {batch}
        input {{ name: "INPUT__0" data_type: {kind} {dims} }}
        output {{ name: "OUTPUT__0" data_type: {kind} {dims} }} {extra}
    """


def serve(text: str, folder: Path, **options: Any) -> Served:
    return Served(TorchBackend, config(text), folder, **options)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (("INPUT__0", "INPUT__1"), ("OUTPUT__0", "OUTPUT__1")),
        (("x", "y"), ("OUTPUT__0", "OUTPUT__1")),
        (("first", "second"), ("sum", "difference")),
        (("a__one", "b__1"), ("sum__x", "difference")),
    ],
)
def test_tensor_names_select_arguments(
    inputs: tuple[str, str], outputs: tuple[str, str], tmp_path: Path
) -> None:
    served = serve(add_sub(inputs, outputs), save(AddSub(), tmp_path))
    arrays = {inputs[0]: np.full((1, 2), 5, np.float32), inputs[1]: np.full((1, 2), 3, np.float32)}
    calls = served(infer(arrays), infer(arrays))
    for call in calls:
        assert [call.arrays[name][0, 0] for name in outputs] == [8, 2]


def test_names_by_index_may_come_in_any_order(tmp_path: Path) -> None:
    text = add_sub(("INPUT__1", "INPUT__0"), ("OUTPUT__1", "OUTPUT__0"))
    served = serve(text, save(AddSub(), tmp_path))
    arrays = {"INPUT__0": np.full((1, 2), 5, np.float32), "INPUT__1": np.full((1, 2), 3, np.float32)}
    (call,) = served(infer(arrays))
    assert (call.arrays["OUTPUT__0"][0, 0], call.arrays["OUTPUT__1"][0, 0]) == (8, 2)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("BOOL", np.bool_),
        ("UINT8", np.uint8),
        ("INT8", np.int8),
        ("INT16", np.int16),
        ("INT32", np.int32),
        ("INT64", np.int64),
        ("FP16", np.float16),
        ("FP32", np.float32),
        ("FP64", np.float64),
        ("BF16", np.uint16),
    ],
)
def test_every_supported_type(kind: str, dtype: Any, tmp_path: Path) -> None:
    served = serve(one(f"TYPE_{kind}"), save(Same(), tmp_path))
    array = np.array([[1, 0]]).astype(dtype)
    for call in served(infer({"INPUT__0": Tensor.from_array("INPUT__0", array, kind)})):
        assert np.array_equal(call.arrays["OUTPUT__0"], array)


def test_dictionary_of_tensors(tmp_path: Path) -> None:
    text = add_sub(("B", "A"), ("OUTPUT__0", "OUTPUT__1")).replace(
        'output { name: "OUTPUT__1" data_type: TYPE_FP32 dims: 2 }', ""
    )
    served = serve(text, save(FromDict(), tmp_path))
    (call,) = served(infer({"A": np.full((1, 2), 5, np.float32), "B": np.full((1, 2), 3, np.float32)}))
    assert call.arrays["OUTPUT__0"].tolist() == [[2, 2]]


def test_list_of_strings(tmp_path: Path) -> None:
    served = serve(one("TYPE_STRING", "dims: 1 reshape { }"), save(Words(), tmp_path))
    calls = served(*(infer({"INPUT__0": np.array([[word]], dtype=object)}) for word in (b"a", "é".encode())))
    assert [call.arrays["OUTPUT__0"].tolist() for call in calls] == [[[b"a!"]], [["é!".encode()]]]


def test_strings_that_are_not_utf_8(tmp_path: Path) -> None:
    text = one("TYPE_STRING", "dims: 1 reshape { }")
    lengths = text.replace('"OUTPUT__0" data_type: TYPE_STRING', '"OUTPUT__0" data_type: TYPE_INT64')
    request = infer({"INPUT__0": np.array([[b"\xff\x00\xfe"]], dtype=object)})
    (call,) = serve(lengths, save(Lengths(), tmp_path / "lengths"))(request)
    assert call.arrays["OUTPUT__0"].tolist() == [[3]]
    (call,) = serve(text, save(Words(), tmp_path / "words"))(request)
    assert call.error.startswith("PyTorch execute failure: 'utf-8' codec can't decode")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Numbers(), "output must be of type Tensor or List[str], received List[int]"),
        (NumbersBeside(), "output at index 1 must be of type Tensor or List[str], received List[Tensor]"),
    ],
)
def test_lists_of_something_else(module: Any, text: str, tmp_path: Path) -> None:
    served = serve(one("TYPE_FP32"), save(module, tmp_path))
    (call,) = served(infer({"INPUT__0": np.zeros((1, 2), np.float32)}))
    assert call.error == f"PyTorch execute failure: {text}"


def test_reshaped_output_of_another_shape(tmp_path: Path) -> None:
    text = one("TYPE_FP32").replace(
        '"OUTPUT__0" data_type: TYPE_FP32 dims: 2', '"O" data_type: TYPE_FP32 dims: 1 reshape { }'
    )
    served = serve(text, save(Same(), tmp_path))
    (call,) = served(infer({"INPUT__0": np.zeros((1, 2), np.float32)}))
    assert "configuration expects [-1], model provides [1,2]" in call.error


def test_responses_do_not_change_when_the_model_executes_again(tmp_path: Path) -> None:
    served = serve(one("TYPE_FP32"), save(Keeps(), tmp_path))
    data = np.array([[1, 2]], np.float32).tobytes()
    (first,) = served(infer({"INPUT__0": Tensor("INPUT__0", "FP32", (1, 2), data)}))
    served(infer({"INPUT__0": np.array([[7, 8]], np.float32)}))
    assert first.arrays["OUTPUT__0"].tolist() == [[1, 2]]
    assert data == np.array([[1, 2]], np.float32).tobytes()


def test_failure_is_one_plain_line(tmp_path: Path) -> None:
    served = serve(INDEXED.replace("dims: 2", "dims: -1"), save(AddSub(), tmp_path))
    arrays = {"INPUT__0": np.zeros((1, 3), np.float32), "INPUT__1": np.zeros((1, 4), np.float32)}
    (call,) = served(infer(arrays))
    assert call.error == (
        "PyTorch execute failure: RuntimeError: The size of tensor a (3) must match the size of"
        " tensor b (4) at"
        " non-singleton dimension 1"
    )


def test_output_of_another_type(tmp_path: Path) -> None:
    text = INDEXED.replace('"OUTPUT__1" data_type: TYPE_FP32', '"OUTPUT__1" data_type: TYPE_INT32')
    served = serve(text, save(AddSub(), tmp_path))
    array = np.zeros((1, 2), np.float32)
    (call,) = served(infer({"INPUT__0": array, "INPUT__1": array}))
    assert call.error == (
        "configuration expects datatype TYPE_INT32 for output 'OUTPUT__1', model provides TYPE_FP32"
    )


def test_output_that_does_not_exist(tmp_path: Path) -> None:
    served = serve(INDEXED.replace("OUTPUT__1", "OUTPUT__2"), save(AddSub(), tmp_path))
    array = np.zeros((1, 2), np.float32)
    (call,) = served(infer({"INPUT__0": array, "INPUT__1": array}))
    assert call.error == (
        "The output OUTPUT__2 in the model configuration refers to an output index which doesn't exist."
        " This model has 2 outputs"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name: "x"', "unable to load model 'x', configuration expects 0 inputs, model provides 2"),
        (
            add_sub(("x", "y"), ("a", "b")).split("output")[0],
            "model configuration must contain at least one output, none were specified.",
        ),
        (
            INDEXED.replace("TYPE_FP32", "TYPE_UINT32", 1),
            "unsupported datatype TYPE_UINT32 for input 'INPUT__0' for model 'x'",
        ),
        (
            INDEXED.replace("TYPE_FP32", "TYPE_STRING", 1),
            "Triton only supports 1 dimensional List of String as input for 'INPUT__0' for model 'x'",
        ),
        (
            INDEXED.replace("INPUT__1", "INPUT__7"),
            "unable to load model 'x', input 'INPUT__7' refers to argument 7 but the model has 2 arguments",
        ),
    ],
)
def test_mismatches_at_load(text: str, message: str, tmp_path: Path) -> None:
    folder = save(AddSub(), tmp_path)
    with pytest.raises(InferError) as caught:
        serve(text, folder)
    assert caught.value.message == message


def test_states_and_controls_need_indices() -> None:
    sequence = """
        sequence_batching {
            control_input { name: "START__1" control { int32_false_true: [0, 1] } }
            state { input_name: "S__2" output_name: "S__1" data_type: TYPE_FP32 dims: 2 }
        }
    """
    text = one("TYPE_FP32", extra=sequence)
    assert input_arguments(config(text), ["x", "start", "state"]) == {
        "INPUT__0": "x",
        "START__1": "start",
        "S__2": "state",
    }
    assert output_indices(config(text)) == {"OUTPUT__0": 0, "S__1": 1}
    with pytest.raises(InferError) as caught:
        input_arguments(config(text.replace("INPUT__0", "INPUT")), ["x", "start", "state"])
    assert caught.value.message == (
        "PyTorch model 'x' is using sequence batching with state but not all inputs and outputs follow the"
        " <name>__<index> naming convention. "
    )
    with pytest.raises(InferError, match="input 'START' does not follow <name>__<index> naming convention"):
        input_arguments(config(text.replace("START__1", "START")), ["x", "start", "state"])


@pytest.mark.parametrize(
    ("inputs", "made", "expected"),
    [
        (("x", "y"), "lengths", {"x": "x", "y": "y", "lengths": "lengths"}),
        (("X__1", "Y__2"), "LENGTHS__0", {"X__1": "x", "Y__2": "y", "LENGTHS__0": "lengths"}),
        (("first", "second"), "LENGTHS", {"first": "lengths", "second": "x", "LENGTHS": "y"}),
    ],
)
def test_inputs_made_from_a_batch(inputs: tuple[str, str], made: str, expected: dict[str, str]) -> None:
    batch_input = f'kind: BATCH_ELEMENT_COUNT target_name: "{made}" data_type: TYPE_FP32 source_input: "x"'
    text = add_sub(inputs, ("a", "b"), f"batch_input {{ {batch_input} }}")
    assert input_arguments(config(text), ["lengths", "x", "y"]) == expected


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (
            'control_input { name: "ID__1" control { kind: CONTROL_SEQUENCE_CORRID'
            " data_type: TYPE_UINT32 } }",
            "input 'ID__1' type 'TYPE_UINT32' is not supported by PyTorch.",
        ),
        (
            'state { input_name: "S__1" output_name: "S__1" data_type: TYPE_UINT64 dims: 2 }',
            "unsupported datatype TYPE_UINT64 for input state 'S__1' for model 'x'",
        ),
    ],
)
def test_types_of_controls_and_states(sequence: str, message: str, tmp_path: Path) -> None:
    folder = save(AddSub(), tmp_path)
    with pytest.raises(InferError) as caught:
        serve(one("TYPE_FP32", extra=f"sequence_batching {{ {sequence} }}"), folder)
    assert caught.value.message == message


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(InferError, match=r"unable to find '.*model.pt' for model instance 'x'"):
        serve(INDEXED, tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.pt").write_bytes(b"not a model")
    with pytest.raises(InferError, match="failed to load model 'x': "):
        serve(INDEXED, tmp_path)


def test_second_default_name(tmp_path: Path) -> None:
    save(Same(), tmp_path)
    (tmp_path / "1" / "model.pt").rename(tmp_path / "1" / "model.pt2")
    serve(one("TYPE_FP32"), tmp_path)
    with pytest.raises(InferError, match=r"unable to find '.*/mine.pt' for model instance 'x'"):
        serve(one("TYPE_FP32", extra='default_model_filename: "mine.pt"'), tmp_path)


@pytest.mark.parametrize(("sharing", "modules"), [("true", 1), ("false", 2)])
def test_weight_sharing(sharing: str, modules: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    extra = f'parameters {{ key: "ENABLE_WEIGHT_SHARING" value {{ string_value: "{sharing}" }} }}'
    served = serve(one("TYPE_FP32", extra=extra), save(Same(), tmp_path))
    second = Instance(served.model, "x_0_1")
    served.backend.instance_initialize(second)
    assert len({id(instance.state.program.module) for instance in (served.instance, second)}) == modules
    assert ("Reusing TorchScript model for instance 'x_0_1'" in caplog.messages) == (modules == 1)


def test_parameters_are_accepted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    keys = {
        "DISABLE_OPTIMIZED_EXECUTION": "true",
        "INFERENCE_MODE": "false",
        "ENABLE_CACHE_CLEANING": "true",
        "INTRA_OP_THREAD_COUNT": "1",
        "ENABLE_JIT_EXECUTOR": "true",
        "ENABLE_JIT_PROFILING": "true",
        "ENABLE_TENSOR_FUSER": "true",
    }
    extra = " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in keys.items())
    served = serve(one("TYPE_FP32", extra=extra), save(Same(), tmp_path))
    assert served(infer({"INPUT__0": np.ones((1, 2), np.float32)}))[0].arrays["OUTPUT__0"].all()
    assert "Optimized execution is disabled for model instance 'x'" in caplog.messages
    assert "Jit profiling is enabled for model instance 'x'" in caplog.messages
    with pytest.raises(InferError, match="failed to convert 'perhaps' to boolean"):
        serve(one("TYPE_FP32", extra=extra.replace('"false"', '"perhaps"')), tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_gpu_instance_without_a_gpu(tmp_path: Path) -> None:
    folder = save(Same(), tmp_path)
    with pytest.raises(InferError, match="no CUDA device"):
        serve(one("TYPE_FP32"), folder, kind="GPU")
