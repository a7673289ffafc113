"""A batching strategy that is a library (probe/strategy.c): as many requests as the model's version says."""

from pathlib import Path

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from backends.base import Model
from backends.registry.strategies import find_strategy
from tests.unit.backend_harness import Call, config, infer
from tests.unit.backends.cpp.conftest import copy

REQUEST = Call(infer({"IN": np.zeros((1, 4), np.float32)}))


def model(directory: Path) -> Model:
    return Model(config('name: "m" backend: "onnxruntime" max_batch_size: 8'), 2, directory)


def test_library_decides_which_requests_join(libraries: Path, model_directory: Path) -> None:
    copy(libraries / "strategy.so", model_directory, "batchstrategy.so")
    strategy = find_strategy(model(model_directory))
    assert strategy is not None

    for _ in range(2):
        batch = strategy.batch_initialize()
        assert [strategy.include_request(REQUEST, batch) for _ in range(3)] == [True, True, False]
        strategy.batch_finalize(batch)
    strategy.batcher_finalize()


def test_error_of_the_library_is_raised(libraries: Path, model_directory: Path) -> None:
    copy(libraries / "strategy.so", model_directory, "batchstrategy.so")
    strategy = find_strategy(model(model_directory))
    assert strategy is not None
    batch = strategy.batch_initialize()

    with pytest.raises(InferError, match="strategy expects one input"):
        strategy.include_request(Call(infer({})), batch)
    strategy.batch_finalize(batch)
    strategy.batcher_finalize()


def test_library_with_a_part_of_the_functions_is_refused(libraries: Path, model_directory: Path) -> None:
    copy(libraries / "probe" / "libtriton_probe.so", model_directory / "2", "batchstrategy.so")

    text = "does not define all required custom batching functions for model m"
    with pytest.raises(InferError, match=text) as raised:
        find_strategy(model(model_directory))

    assert raised.value.code is ErrorCode.INVALID_ARG
