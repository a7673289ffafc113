"""`drift.yaml` as people write it."""

import pytest

from app.core.drift.spec import DriftSpec, InputRule
from app.core.errors import ErrorCode, InferError
from deployments.drift.policy import parse_drift


def test_an_empty_file_is_the_default() -> None:
    assert parse_drift("") == DriftSpec()


def test_rules_are_read() -> None:
    text = "tolerance: 0.02\ninputs: {x: {range: [0, 1], nan: reject}, colour: {values: [red], new: tag}}"
    assert parse_drift(text) == DriftSpec(
        tolerance=0.02,
        inputs={"x": InputRule((0, 1), nan="reject"), "colour": InputRule(values=("red",), new="tag")},
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("inputs: {x: {range: [1, 0]}}", "drift.yaml: inputs: x: range: 1 to 0 has no numbers"),
        ("inputs: {x: {}}", "drift.yaml: inputs: x: a rule needs range, nan or new"),
        ("inputs: {x: {range: [0, 1], values: [a]}}", "drift.yaml: inputs: x: values say what is known"),
        ("inputs: {x: {nan: refuse}}", "drift.yaml: inputs[...].nan: Invalid enum value 'refuse'"),
        ("inputs: {x: {ranges: [0, 1]}}", "drift.yaml: inputs[...]: Object contains unknown field `ranges`"),
        ("alpha: 2", "drift.yaml: alpha: Expected `float` < 0.5"),
        ("[", "drift.yaml: not YAML: "),
    ],
)
def test_a_bad_file_is_refused_with_field_and_reason(text: str, why: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_drift(text)
    assert caught.value.code is ErrorCode.INVALID_ARG and caught.value.message.startswith(why)
