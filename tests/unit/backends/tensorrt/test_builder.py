"""Engines that are built from ONNX files: what the builder is told, and what is kept."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from app.core.errors import ErrorCode, InferError
from backends.base import Model
from backends.tensorrt.build_options import build_options, engine_key, profile
from backends.tensorrt.engine_cache import EngineCache
from backends.tensorrt.profiles import Range
from tests.unit.backend_harness import Served, config, infer
from tests.unit.backends.tensorrt import fake_tensorrt as trt

X3 = """
    name: "m" backend: "tensorrt" max_batch_size: 8 default_model_filename: "model.onnx"
    dynamic_batching { preferred_batch_size: [ 2, 4 ] }
    input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "Y" data_type: TYPE_FP32 dims: 3 }
"""
IMAGE = {"image": (-1, 3, -1, -1), "size": (2,)}

Serve = Callable[..., Served]


def parameters(**values: str) -> str:
    return " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in values.items()
    )


def model(text: str = "", folder: Path = Path("nowhere")) -> Model:
    return Model(config(X3 + text), 1, folder)


@pytest.fixture
def serve(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Load an ONNX file of these lines; engines are kept below the test's folder."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))

    def load(content: str = "X -1 3", text: str = X3, **options: Any) -> Served:
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "1" / "model.onnx").write_text(content)
        return Served(backend.TensorRtBackend, config(text), tmp_path, kind="GPU", **options)

    return load


def test_engine_is_built_and_executes(serve: Serve) -> None:
    rows = np.ones((3, 3), np.float32)
    assert (serve()(infer({"X": rows}))[0].arrays["Y"] == 2).all()
    (built,) = trt.Builder.builds
    assert built.profiles[0].shapes == {"X": ((1, 3), (4, 3), (8, 3))}
    assert (built.flags, built.pools, built.builder_optimization_level) == ([], {}, 3)


def test_builder_is_told_the_parameters(serve: Serve) -> None:
    text = parameters(
        precision_mode="INT8",
        trt_builder_optimization_level="5",
        max_workspace_size_bytes="1048576",
        trt_profile_min_shapes="X:2x3",
        trt_profile_opt_shapes="X:3x3",
        trt_profile_max_shapes="X:5x3",
    )
    serve(text=X3 + text)
    (built,) = trt.Builder.builds
    assert built.flags == [trt.BuilderFlag.INT8, trt.BuilderFlag.FP16]
    assert built.pools == {trt.MemoryPoolType.WORKSPACE: 1 << 20}
    assert built.builder_optimization_level == 5
    assert built.profiles[0].shapes == {"X": ((2, 3), (3, 3), (5, 3))}


def test_engine_is_built_once(serve: Serve) -> None:
    serve()
    serve()
    assert len(trt.Builder.builds) == 1
    serve("X -1 3\nother 1")
    assert len(trt.Builder.builds) == 2, "another file"
    serve(text=X3 + parameters(precision_mode="FP16"))
    assert len(trt.Builder.builds) == 3, "another precision"


def test_timings_are_kept_for_further_builds(serve: Serve, tmp_path: Path) -> None:
    serve()
    serve(text=X3 + parameters(precision_mode="FP16"))
    (timings,) = tmp_path.glob("nereid-*/engines/*.timing")
    assert timings.name == "TensorRT-10.13.0-NVIDIA-Stand-in.timing"
    assert timings.read_bytes() == b"build build "


def test_configuration_is_completed_from_the_built_engine(serve: Serve, backend: Any, tmp_path: Path) -> None:
    served = serve()
    text = 'name: "m" backend: "tensorrt" max_batch_size: 8 default_model_filename: "model.onnx" '
    text += "dynamic_batching { preferred_batch_size: [ 2, 4 ] } instance_group { kind: KIND_GPU }"
    complete = served.backend.auto_complete(Model(config(text), 1, tmp_path))
    assert [(tensor.name, list(tensor.dims)) for tensor in complete.input] == [("X", [3])]
    assert len(trt.Builder.builds) == 1


def test_model_that_cannot_be_parsed(serve: Serve) -> None:
    with pytest.raises(
        InferError, match=r"unable to build an engine of model 'm' from .*: In node 0: Unsupp"
    ):
        serve("")


def test_build_that_fails(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt.Builder, "fails", True)
    with pytest.raises(InferError) as caught:
        serve()
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == (
        "unable to build an engine of model 'm': Could not find any implementation"
    )
    assert not list(tmp_path.glob("nereid-*/engines/*.plan"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            parameters(precision_mode="FP8"),
            "parameter 'precision_mode' of model 'm' is 'FP8', must be one of FP32, FP16, BF16, INT8",
        ),
        (
            parameters(trt_builder_optimization_level="6"),
            "parameter 'trt_builder_optimization_level' of model 'm' must be from 0 to 5, got 6",
        ),
        (
            parameters(trt_profile_min_shapes="X"),
            "'X' in a trt_profile parameter of model 'm' is not NAME:1x3x224x224",
        ),
        (
            parameters(trt_profile_min_shapes="X:axb"),
            "'X:axb' in a trt_profile parameter of model 'm' is not NAME:1x3x224x224",
        ),
        (
            parameters(trt_profile_min_shapes="X:1x3"),
            "parameters trt_profile_min_shapes, trt_profile_opt_shapes and trt_profile_max_shapes of model"
            " 'm' must name the same inputs",
        ),
    ],
)
def test_parameters_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(InferError) as caught:
        build_options(model(text))
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, message)


def test_profile_of_sizes_that_vary() -> None:
    bounds = {f"trt_profile_{which}_shapes": f"image:1x3x{size}x{size}" for which, size in SIZES.items()}
    known = build_options(model(parameters(**bounds)))
    ranges = profile(model().config, known, IMAGE)
    assert ranges == {"image": Range((1, 3, 32, 32), (1, 3, 64, 64), (1, 3, 96, 96))}
    with pytest.raises(InferError, match=r"input 'image' of model 'm' has the shape \[-1, 3, -1, -1\]"):
        profile(model().config, build_options(model()), IMAGE)
    with pytest.raises(InferError, match="name image, the ONNX model has other"):
        profile(model().config, known, {"other": (2,)})


SIZES = {"min": 32, "opt": 64, "max": 96}


def test_key_is_that_of_everything_that_matters(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"a")
    usual, declared = build_options(model()), model().config
    larger = model().config
    larger.max_batch_size = 16

    def key(configuration: Any = declared, options: Any = usual, machine: str = "TensorRT 10 H100") -> str:
        return engine_key([file], configuration, options, machine)

    keys = {
        key(),
        key(larger),
        key(options=usual._replace(precision="FP16")),
        key(machine="TensorRT 10 A100"),
    }
    assert key() in keys
    file.write_bytes(b"b")
    assert len(keys | {key()}) == 5


def test_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = EngineCache(25, tmp_path / "engines")
    for age, key in enumerate(("a", "b")):
        path = cache.get(key, "gpu", lambda timings: b"0123456789")
        os.utime(path, (age, age))
    cache.get("a", "gpu", lambda timings: b"")  # used again
    cache.get("c", "gpu", lambda timings: b"0123456789")
    assert sorted(path.name for path in (tmp_path / "engines").glob("*.plan")) == ["a.plan", "c.plan"]
    assert (tmp_path / "engines").stat().st_mode & 0o077 == 0


def test_size_of_the_cache(serve: Serve) -> None:
    with pytest.raises(InferError, match="engine-cache-bytes must be a number, got 'much'"):
        serve(settings={"engine-cache-bytes": "much"})
