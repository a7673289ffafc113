"""What `tape.yaml` may say, and what is told of what it may not."""

import re

import pytest
import yaml

from app.core.errors import InferError
from app.core.tape.spec import SlowRule, TapeSpec, parse_spec

WHOLE = """
rate: 0.05
errors: false
slow: {quantile: 0.99}
fields: {TEXT: hash, image: keep, OUT: size, gone: drop, "parameters.user": drop, "parameters.*": keep}
steps: true
replay: never
"""


def test_every_field_is_read() -> None:
    spec = parse_spec(yaml.safe_load(WHOLE), "tape.yaml")
    fields = {"TEXT": "hash", "image": "keep", "OUT": "size", "gone": "drop"}
    assert spec == TapeSpec(
        0.05,
        False,
        SlowRule(quantile=0.99),
        {**fields, "parameters.user": "drop", "parameters.*": "keep"},  # type: ignore[dict-item]
        True,
        "never",
    )


def test_an_empty_file_is_the_default() -> None:
    assert parse_spec(None, "tape.yaml") == TapeSpec()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rate: 2", "tape.yaml: rate: Expected `float` <= 1.0"),
        ("rate: often", "tape.yaml: rate: Expected `float | null`, got `str`"),
        ("slow: 50", "tape.yaml: slow: Expected `object | null`, got `int`"),
        ("slow: {}", "tape.yaml: slow: expected one of `above_ms` and `quantile`"),
        ("slow: {above_ms: 1, quantile: 0.9}", "tape.yaml: slow: expected one of `above_ms` and `quantile`"),
        ("slow: {quantile: 0.1}", "tape.yaml: slow.quantile: Expected `float` >= 0.5"),
        ("fields: {X: encrypt}", "tape.yaml: fields[...]: Invalid enum value 'encrypt'"),
        ("fields: {parameters.x: size}", "'parameters.x': a parameter is kept, hashed or dropped"),
        ("rates: 1", "tape.yaml: Object contains unknown field `rates`"),
        ("- rate", "tape.yaml: Expected `object`, got `array`"),
    ],
)
def test_errors_name_field_and_reason(text: str, told: str) -> None:
    with pytest.raises(InferError, match=re.escape(told)):
        parse_spec(yaml.safe_load(text), "tape.yaml")
