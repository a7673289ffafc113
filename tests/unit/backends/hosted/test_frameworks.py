"""OpenVINO, trees and PyTorch in a process of another environment, beside the same backend in this one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from app.core.errors import InferError
from backends.base import Model
from backends.registry.configuration import normalise
from backends.registry.descriptions import described
from backends.registry.loading import find_backend, hosted_backend
from backends.registry.place import BackendPlace
from tests import environments
from tests.unit.backend_harness import Served, config, infer
from tests.unit.backends.hosted.test_interpreters import VERSIONS, interpreter


class Case(NamedTuple):
    """A model of a backend.

    Attributes:
        write: writes its files into a folder.
        declared: its configuration beside name and backend, before completion.
        arrays: the inputs of a request of so many rows.
        bad: inputs that the framework refuses.
        module: the framework's.
    """

    write: Callable[[Path], object]
    declared: str
    arrays: Callable[[int], dict[str, Any]]
    bad: dict[str, Any]
    module: str


def _write_sums(folder: Path) -> None:
    from tests.unit.backends.openvino.networks import sums

    sums(folder)


def _write_trees(folder: Path) -> None:
    import lightgbm

    random = np.random.default_rng(0)
    rows, target = random.standard_normal((200, 4)), random.integers(0, 3, 200)
    options = {"objective": "multiclass", "num_class": 3, "verbose": -1, "num_threads": 1}
    (folder / "1").mkdir(parents=True)
    lightgbm.train(options, lightgbm.Dataset(rows, target), 5).save_model(folder / "1/model.txt")


def _write_script(folder: Path) -> None:
    import torch

    jit: Any = torch.jit
    (folder / "1").mkdir(parents=True)
    jit.save(jit.script(torch.nn.Linear(4, 2).eval()), str(folder / "1/model.pt"))


def _write_program(folder: Path) -> None:
    import torch

    rows = {0: torch.export.Dim("rows", min=1, max=8)}
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(2, 4),), dynamic_shapes=(rows,))
    (folder / "1").mkdir(parents=True)
    torch.export.save(program, folder / "1/model.pt2")


def _one(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda rows: {name: np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)}


_TENSORS = """
    max_batch_size: 8 input { name: "INPUT__0" data_type: TYPE_FP32 dims: -1 }
    output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 2 }
"""
_BAD = np.ones((1, 3), np.float32)
CASES = {
    "openvino": Case(
        _write_sums,
        'default_model_filename: "model.xml"',
        lambda rows: {name: array for key in "AB" for name, array in _one(key)(rows).items()},
        {"A": _BAD, "B": np.ones((1, 4), np.float32)},
        "openvino",
    ),
    "fil": Case(
        _write_trees,
        'parameters { key: "predict_proba" value { string_value: "true" } }',
        _one("input__0"),
        {"input__0": _BAD},
        "treelite",
    ),
    "pytorch": Case(_write_script, _TENSORS, _one("INPUT__0"), {"INPUT__0": _BAD}, "torch"),
    "pytorch, a program": Case(_write_program, _TENSORS, _one("INPUT__0"), {"INPUT__0": _BAD}, "torch"),
}


def compare(name: str, folder: Path, python: Path) -> None:
    """Serve a case here and there: configurations, answers, and errors of loads and requests are the same."""
    backend, case = name.partition(",")[0], CASES[name]
    case.write(folder)
    text = f'name: "m" backend: "{backend}" {case.declared}'
    served = []
    for kind in (find_backend(BackendPlace(backend)), hosted_backend(backend)):
        model = Model(config(text), 1, folder)
        model.interpreter = python
        model.config = normalise(kind.auto_complete(model))
        served.append(Served(kind, model))
    here, there = served
    assert here.model.config == there.model.config and there.model.config.input
    requests = [infer(case.arrays(rows)) for rows in (1, 3)]
    for mine, theirs in zip(here(*requests), there(*requests), strict=True):
        for output, expected in mine.arrays.items():
            np.testing.assert_allclose(theirs.arrays[output], expected, rtol=1e-5, atol=1e-6)
    bad = infer(case.bad)
    assert here(bad)[0].error == there(bad)[0].error
    for each in served:
        each.close()
    errors = [
        _refusal(kind, text, folder / "none", python) for kind in (type(here.backend), type(there.backend))
    ]
    assert errors[0] == errors[1]


def _refusal(kind: Any, text: str, folder: Path, python: Path) -> tuple[Any, str]:
    model = Model(config(text), 1, folder)
    model.interpreter = python
    with pytest.raises(InferError) as caught:
        Served(kind, model)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("pytorch")) for name in CASES]
)
def test_a_process_answers_as_the_replica_does(name: str, tmp_path: Path) -> None:
    pinned = described(name.partition(",")[0]).requirements
    compare(name, tmp_path / "m", environments.borrow_pinned(tmp_path / "env", pinned))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_so_does_one_of_another_python(name: str, version: str, tmp_path: Path) -> None:
    compare(name, tmp_path / "m", interpreter(version, "numpy", "google.protobuf", CASES[name].module))
