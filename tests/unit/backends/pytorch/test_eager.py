"""Eager models: a module's code in model.py, its weights in model.pt."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from app.core.errors import InferError
from backends.base import Model
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from tests.unit.backend_harness import Served, config, infer

CODE = """
import torch
from torch.nn import Linear  # comes before Net by name

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x, y):
        assert not self.training and torch.is_inference_mode_enabled()
        return (x + y) * self.weight, x - y
"""
TENSORS = """
    input { name: "A" data_type: TYPE_FP32 dims: -1 }
    input { name: "B" data_type: TYPE_FP32 dims: -1 }
    output { name: "SUM" data_type: TYPE_FP32 dims: 2 }
    output { name: "DIFFERENCE" data_type: TYPE_FP32 dims: 2 }
"""
DISABLED = (
    'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"disable\\": true}" } }'
)

Load = Callable[..., Served]


def text(extra: str = DISABLED, batch: int = 8) -> str:
    head = f'name: "eager" backend: "pytorch" runtime: "model.py" max_batch_size: {batch}'
    return f"{head} {TENSORS} {extra}"


def write(folder: Path, code: str = CODE, weights: Any = None) -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(code)
    if weights is not None:
        torch.save(weights, folder / "1" / "model.pt")
    return folder


def serve(folder: Path, configuration: str = text(), **options: Any) -> Served:
    """Serve a folder as a replica does."""
    model = Model(config(configuration), 1, folder)
    model.common_file = BackendPlace("pytorch", None, "model.py").python_file
    model.interpreter = options.pop("interpreter", None)
    return Served(find_backend(BackendPlace("pytorch", None, "model.py")), model, **options)


@pytest.fixture
def load() -> Iterator[Load]:
    """`serve`, closed at the end."""
    loaded: list[Served] = []

    def load_one(*words: Any, **options: Any) -> Served:
        loaded.append(serve(*words, **options))
        return loaded[-1]

    yield load_one
    for served in loaded:
        served.close()


def pair(rows: int = 1, width: int = 2) -> dict[str, Any]:
    return {"A": np.full((rows, width), 5, np.float32), "B": np.full((rows, 2), 3, np.float32)}


def test_runtime_chooses_the_python_backend() -> None:
    assert BackendPlace("pytorch", None, "model.py").executes_python
    assert not BackendPlace("pytorch", None).executes_python


def test_module_with_its_weights(tmp_path: Path, load: Load) -> None:
    served = load(write(tmp_path, weights={"weight": torch.tensor([10.0, 1.0])}))
    for call in served(infer(pair()), infer(pair(2))):
        assert call.arrays["SUM"][-1].tolist() == [80, 8]
        assert call.arrays["DIFFERENCE"][-1].tolist() == [2, 2]


def test_first_module_by_name_is_the_model(tmp_path: Path, load: Load) -> None:
    other = CODE[CODE.index("class Net") :].replace("x - y", "y - x")
    served = load(write(tmp_path, CODE.replace("class Net", "class Other") + other.replace("Net", "First")))
    assert served(infer(pair()))[0].arrays["DIFFERENCE"].tolist() == [[-2, -2]]


def test_module_without_weights(tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    served = load(write(tmp_path))
    assert served(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]
    assert "Model parameter file not found for 'eager'" in caplog.text


def test_model_without_batches(tmp_path: Path, load: Load) -> None:
    served = load(write(tmp_path), text(batch=0))
    arrays = {"A": np.array([5, 6], np.float32), "B": np.array([3, 3], np.float32)}
    assert served(infer(arrays))[0].arrays["SUM"].tolist() == [8, 9]


def test_only_the_request_at_fault_fails(tmp_path: Path, load: Load) -> None:
    served = load(write(tmp_path))
    good, bad = served(infer(pair()), infer(pair(width=3)))
    assert good.arrays["SUM"].tolist() == [[8, 8]]
    assert "must match the size" in bad.error


def test_response_is_not_changed_by_the_next(tmp_path: Path, load: Load) -> None:
    code = """
import torch
class Keeps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(1, 2)
    def forward(self, x, y):
        self.kept.copy_(x)
        return self.kept, y
"""
    served = load(write(tmp_path, code))
    (first,) = served(infer(pair()))
    served(infer({"A": np.zeros((1, 2), np.float32), "B": np.zeros((1, 2), np.float32)}))
    assert first.arrays["SUM"].tolist() == [[5, 5]]


def test_torchscript_without_code(tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "1").mkdir()

    class AddSub(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y, x - y

    traced: Any = torch.jit.trace(AddSub(), (torch.ones(1, 2), torch.ones(1, 2)))  # type: ignore[no-untyped-call]
    traced.save(str(tmp_path / "1" / "model.pt"))
    served = load(tmp_path)
    assert served(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]
    assert "Loading 'eager' as TorchScript" in caplog.text


def test_kind_model_runs_where_its_parameters_are(tmp_path: Path, load: Load) -> None:
    served = load(write(tmp_path), kind="MODEL")
    assert served(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]
    bare = "import torch\nclass Bare(torch.nn.Module):\n    def forward(self, x, y): return x, y\n"
    with pytest.raises(InferError, match="Cannot determine model device"):
        load(write(tmp_path / "bare", bare), kind="MODEL")


class Code:
    """Runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def test_weights_that_are_a_pickle_are_not_executed(tmp_path: Path, load: Load) -> None:
    mark = tmp_path / "executed"
    with pytest.raises(InferError, match=r"'model.pt' beside model.py must be a state_dict of the module"):
        load(write(tmp_path, weights=Code(mark)))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("code", "extra", "message"),
    [
        ("", DISABLED, "Cannot find a subclass of torch.nn.Module"),
        ("import missing_module", DISABLED, "No module named 'missing_module'"),
        (
            CODE,
            DISABLED.replace("disable", "model"),
            "'model' is not an optional parameter for 'torch.compile'",
        ),
        (CODE, DISABLED.replace("{\\", "\\"), "parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' is no JSON"),
        (
            CODE,
            DISABLED + 'parameters { key: "NUM_THREADS" value { string_value: "many" } }',
            "parameter 'NUM_THREADS': failed to convert 'many' to integral number",
        ),
        (
            CODE,
            DISABLED + 'default_model_filename: "../../other.py"',
            "escapes the directory of model 'eager'",
        ),
    ],
)
def test_faults_at_load(code: str, extra: str, message: str, tmp_path: Path, load: Load) -> None:
    (tmp_path / "other.py").write_text(CODE)
    with pytest.raises(InferError) as caught:
        load(write(tmp_path / "m", code), text(extra))
    assert message in caught.value.message


def test_no_model(tmp_path: Path, load: Load) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(InferError, match=r"No model found in .*/1/\['model.py', 'model.pt'\]"):
        load(tmp_path)


def test_parameters_are_logged(tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    threads = torch.get_num_threads()
    between = torch.get_num_interop_threads()
    extra = 'parameters { key: "NUM_THREADS" value { string_value: "2" } }'
    extra += f'parameters {{ key: "NUM_INTEROP_THREADS" value {{ string_value: "{between}" }} }}'
    load(write(tmp_path), text(DISABLED + extra))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    settings = f"NUM_THREADS = 2; NUM_INTEROP_THREADS = {between}; "
    assert f"Torch parallelism settings for 'eager': {settings}" in caplog.text
    assert "'torch.compile' optional parameter(s) for 'eager': {'disable': True}" in caplog.text


def test_machine_without_a_compiler(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    served = load(write(tmp_path), text(""))
    assert served(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]
    assert "no C++ compiler 'no-such-compiler': 'eager' is executed eagerly" in caplog.text


def test_process_of_its_own(tmp_path: Path, load: Load) -> None:
    served = load(write(tmp_path), interpreter=Path(sys.executable))
    assert served(infer(pair()))[0].arrays["SUM"].tolist() == [[8, 8]]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
def test_compiled_module(tmp_path: Path, load: Load) -> None:
    code = CODE.replace("assert not self.training and torch.is_inference_mode_enabled()", "")
    served = load(
        write(tmp_path, code), text("").replace("dims: -1", "dims: 2"), interpreter=Path(sys.executable)
    )
    for rows in (1, 2, 5):
        assert served(infer(pair(rows)))[0].arrays["SUM"].tolist() == [[8, 8]] * rows
