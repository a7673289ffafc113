"""Sampling parameters, as requests give them."""

import json

import pytest

from backends.packaged.llm.engine.sampling import SamplingParameters, read_sampling_parameters


def test_defaults_are_those_of_vllm() -> None:
    assert read_sampling_parameters("{}") == SamplingParameters(
        temperature=1.0, top_p=1.0, top_k=0, max_tokens=16, stop=(), seed=None, logprobs=None
    )


def test_values_may_be_text() -> None:
    read = read_sampling_parameters(
        '{"temperature": "0.5", "top_k": "3", "ignore_eos": "False", "max_tokens": 7.0, "stop": "."}'
    )
    assert read == SamplingParameters(temperature=0.5, top_k=3, ignore_eos=False, max_tokens=7, stop=(".",))


def test_biases_are_limited() -> None:
    read = read_sampling_parameters('{"logit_bias": {"7": 500, "8": -1.5}, "min_tokens": 3}')
    assert (read.logit_bias, read.min_tokens) == ({7: 100, 8: -1.5}, 3)
    assert read_sampling_parameters('{"logit_bias": "{\\"7\\": 1}"}').logit_bias == {7: 1}


@pytest.mark.parametrize(
    ("given", "structure"),
    [
        ({"json": {"type": "string"}}, ("json", '{"type": "string"}')),
        ('{"json": {"type": "string"}}', ("json", '{"type": "string"}')),
        ({"json": "{}", "regex": None}, ("json", "{}")),
        ({"json_object": True}, ("json", '{"type": "object"}')),
        ({"regex": "a+"}, ("regex", "a+")),
        ({"choice": ["a", "b"]}, ("choice", '["a", "b"]')),
        ({"grammar": "start: A"}, ("grammar", "start: A")),
    ],
)
def test_structures(given: object, structure: tuple[str, str]) -> None:
    read = read_sampling_parameters(json.dumps({"structured_outputs": given}))
    assert read.structured_outputs == structure


@pytest.mark.parametrize(
    "given", [{}, {"json": {}, "regex": "a"}, {"regex": 1}, {"choice": []}, {"structural_tag": "x"}, 3, "x"]
)
def test_structure_that_is_none(given: object) -> None:
    with pytest.raises(ValueError, match="structured_outputs must be an object with one of json, json_ob"):
        read_sampling_parameters(json.dumps({"structured_outputs": given}))


def test_long_schema_is_refused() -> None:
    schema = json.dumps({"structured_outputs": {"json": {"enum": ["x" * 65536]}}})
    with pytest.raises(ValueError, match="structured_outputs must be at most 65536 characters"):
        read_sampling_parameters(schema)


def test_null_is_the_default() -> None:
    assert read_sampling_parameters('{"seed": null, "max_tokens": null}') == SamplingParameters()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"temperature": -1}', "temperature must be non-negative, got -1."),
        ('{"temperature": NaN}', "temperature must be non-negative, got nan."),
        ('{"temperature": true}', "temperature must be a number, got True."),
        ('{"top_p": 0}', "top_p must be in (0, 1], got 0."),
        ('{"top_k": -5}', "top_k must be 0 (disable), or at least 1, got -5."),
        ('{"top_k": 1.5}', "top_k must be an integer, got 1.5."),
        ('{"max_tokens": 0}', "max_tokens must be at least 1, got 0."),
        ('{"max_tokens": 1e400}', "max_tokens must be an integer, got inf."),
        ('{"stop": [1]}', "stop must be a string or a list of them, got [1]."),
        ('{"stop": [""]}', "stop must be at most 16 strings of 1 to 256 characters, got ['']."),
        ('{"ignore_eos": "yes"}', "ignore_eos must be true or false, got yes."),
        ('{"min_tokens": -1}', "min_tokens must be at least 0, got -1."),
        ('{"min_tokens": 17}', "min_tokens must be less than or equal to max_tokens=16, got 17."),
        ('{"logit_bias": [1]}', "logit_bias must be an object of tokens and numbers, got [1]."),
        ('{"logit_bias": {"a": 1}}', "logit_bias must be an object of tokens and numbers, got {'a': 1}."),
        ('{"logit_bias": {"1": NaN}}', "logit_bias must be at most 1024 tokens with numbers"),
        ("[" * 100_000, "JSON is nested too deeply"),
        ('{"logprobs": 21}', "logprobs must be in [0, 20], got 21."),
        ('{"n": 2}', "n must be 1: a request has one continuation, got 2."),
        ('{"top_q": 1}', "unknown sampling parameter 'top_q', known are: temperature, top_p"),
        ("[1]", "sampling parameters must be a JSON object, got [1]"),
        ("{", "Expecting property name"),
    ],
)
def test_value_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_sampling_parameters(text)
    assert str(caught.value).startswith(message)
