"""Warnings about outputs of Python models that do not match the configuration."""

import pytest

from tests.unit.python_models import IDENTITY, Load, execute, row, text

WRONG = execute("""
tensors = [pb_utils.Tensor("X", np.ones(1)), pb_utils.Tensor("O", np.ones((1, 1, 1), np.int32))]
return [pb_utils.InferenceResponse(tensors)]
""")


def test_each_kind_of_wrong_output_is_logged_once(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    served = load(WRONG)
    for _ in range(2):
        served(row(1))[0].wait()
    assert [record.getMessage() for record in caplog.records] == [
        "model 'm' returned output 'O' of data type INT32, declared FP32; this is logged once",
        "model 'm' returned output 'O' of shape [1, 1, 1], declared [-1, -1]; this is logged once",
        "model 'm' returned output 'X', which its configuration does not declare; it is dropped;"
        " this is logged once",
    ]


def test_right_outputs_are_not_logged(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    load(IDENTITY)(row(1), row(1, 2))
    reshaped = text().replace("dims: -1", "dims: 1 reshape { }")
    body = "return [pb_utils.InferenceResponse([pb_utils.Tensor('O', np.ones(1, np.float32))])]"
    load(execute(body), reshaped)(row(1))[0].wait()
    assert not caplog.records
