"""Exported programs, made here, through the pytorch backend."""

import json
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from app.core.errors import ErrorCode, InferError
from backends.base import Instance
from tests.unit.backend_harness import infer
from tests.unit.backends.pytorch import programs
from tests.unit.backends.pytorch.programs import ANSWER, BY_POSITION, INPUTS, OUTPUTS, arrays, serve, text


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `programs.Nested`, for 1 to 8 rows."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "1").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own code
        torch.export.save(programs.export(), folder / "1" / "model.pt2")
    return folder


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(INPUTS, OUTPUTS), (BY_POSITION[: len(INPUTS)], BY_POSITION[len(INPUTS) :])]
)
def test_batch_of_nested_arguments(inputs: Any, outputs: Any, program: Path) -> None:
    served = serve(text(inputs[::-1], outputs), program)
    for _ in range(2):  # the first run of new shapes goes another way
        for call in served(infer(arrays(inputs, 1)), infer(arrays(inputs, 2))):
            assert [call.arrays[name][-1, 0] for name in outputs] == list(ANSWER)


@pytest.mark.parametrize("platform", ["", 'platform: "torch_aoti"', 'platform: "pytorch_libtorch"'])
def test_the_archive_says_what_it_is(platform: str, program: Path) -> None:
    served = serve(text(extra=platform), program)
    assert served(infer(arrays()))[0].arrays["RESULT[total]"].tolist() == [[103, 103]]


def test_only_the_request_beyond_the_exported_range_fails(program: Path) -> None:
    served = serve(text(), program)
    small, large = served(infer(arrays(rows=3)), infer(arrays(rows=9)))
    assert small.arrays["RESULT[total]"].shape == (3, 2)
    (response,) = large.wait()
    assert response.failure is not None and response.failure.code is ErrorCode.INVALID_ARG
    assert large.error.startswith(
        "model 'x' was exported for inputs with x.size()[0] <= 8, got 'ARGS[0]' [9, 2]"
    )
    (again,) = served(infer(arrays(rows=9)))
    assert again.error == large.error


def test_another_failure_is_the_models(program: Path) -> None:
    served = serve(text(dims="dims: -1"), program)
    wrong = arrays() | {"KWARGS[scale]": np.ones((1, 3), np.float32)}
    assert "was exported for inputs with" in served(infer(wrong))[0].error


def test_responses_own_their_memory(program: Path) -> None:
    served = serve(text(), program)
    (first,) = served(infer(arrays()))
    served(infer({name: 7 * array for name, array in arrays().items()}))
    assert first.arrays["RESULT[total]"].tolist() == [[103, 103]]


def test_data_type_is_compared_at_load(program: Path) -> None:
    with pytest.raises(InferError) as caught:
        serve(text().replace("TYPE_FP32", "TYPE_FP64", 1), program)
    assert caught.value.message == (
        "unable to load model 'x', configuration expects datatype TYPE_FP64 for input 'ARGS[0]', model"
        " provides TYPE_FP32"
    )


@pytest.mark.parametrize("dims", ["dims: 3", "dims: [ 2, 2 ]"])
def test_dims_are_compared_at_load(program: Path, dims: str) -> None:
    with pytest.raises(InferError, match=r"configuration expects shape \[-1,.*, model provides \[-1,2\]"):
        serve(text(dims=dims), program)
    serve(text(dims="dims: -1"), program)


def test_instances_share_the_program(program: Path) -> None:
    served = serve(text(), program)
    second = Instance(served.model, "x_0_1")
    served.backend.instance_initialize(second)
    assert second.state.program.program is served.instance.state.program.program


def test_first_run_is_not_a_clients(program: Path) -> None:
    served = serve(text(), program)
    assert len(served.instance.state.program._fitting) == 1


class Code:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)

    def __init__(self, path: Path) -> None:
        self.path = str(path)


def changed(program: Path, folder: Path, replaced: dict[str, bytes]) -> Path:
    """Copy a program with other members, named by the end of their names."""
    (folder / "1").mkdir()
    shutil.copy(program / "1" / "model.pt2", folder / "old.pt2")
    with zipfile.ZipFile(folder / "old.pt2") as old, zipfile.ZipFile(folder / "1/model.pt2", "w") as new:
        root = old.namelist()[0].split("/")[0]
        content = {name: old.read(name) for name in old.namelist()}
        content |= {f"{root}/{name}": data for name, data in replaced.items()}
        for name, data in content.items():
            new.writestr(name, data)
    return folder


def test_pickled_constant_is_refused(program: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    folder = changed(
        program,
        tmp_path,
        {
            "data/constants/model_constants_config.json": json.dumps({"config": {"c": entry}}).encode(),
            "data/constants/opaque_obj_0": pickle.dumps(Code(mark)),
        },
    )
    with pytest.raises(InferError, match="pickled Python objects among its constants"):
        serve(text(), folder)
    assert not mark.exists()


def test_pickled_weight_and_example_are_not_executed(program: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    torch.save(Code(mark), tmp_path / "hostile.pt")
    hostile = (tmp_path / "hostile.pt").read_bytes()
    folder = changed(program, tmp_path, {"data/sample_inputs/model.pt": hostile})
    with pytest.raises(InferError, match="failed to load model 'x': "):
        serve(text(), folder)
    assert not mark.exists()


def test_broken_archive(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with zipfile.ZipFile(tmp_path / "1" / "model.pt2", "w") as archive:
        archive.writestr("model/models/model.json", "{}")
    with pytest.raises(InferError, match=f"failed to load model 'x': .*this is {torch.__version__[:4]}"):
        serve(text(), tmp_path)
