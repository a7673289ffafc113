"""From text to configuration: what is read, and what an error tells its reader."""

import pytest

from app.core.config.text import MAX_CONFIG_BYTES, parse_config_json, parse_pbtxt
from app.core.errors import ErrorCode, InferError

SOURCE = "/models/m/config.pbtxt"


def test_parse_reads_all_of_text_format() -> None:
    config = parse_pbtxt(
        """
        # a comment
        name: "m"; platform: "onnxruntime_onnx", max_batch_size: 0x8
        input [
          { name: "A" data_type: TYPE_FP32 dims: [ -1, 3 ] }, { name: "B" data_type: 9 dims: 1 dims: 2 }
        ]
        dynamic_batching { preserve_ordering: t max_queue_delay_microseconds: 100 }
        parameters { key: "k" value: { string_value: "a" "b" } }
        """,
        SOURCE,
    )
    assert (config.name, config.platform, config.max_batch_size) == ("m", "onnxruntime_onnx", 8)
    assert [list(tensor.dims) for tensor in config.input] == [[-1, 3], [1, 2]]
    assert config.dynamic_batching.preserve_ordering
    assert config.parameters["k"].string_value == "ab"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            'name: "a"\nmax_batchsize: 3',
            'line 2, column 1: Message type "inference.ModelConfig" has no field named "max_batchsize". '
            "Did you mean 'max_batch_size'?",
        ),
        (
            'input [ { name: "x" } ]\ninput {\n  dimz: 3\n}',
            'line 3, column 3: Message type "inference.ModelInput" has no field named "dimz". '
            "Did you mean 'dims'?",
        ),
        (
            "input { data_type: FP32 }",
            'line 1, column 20: Enum type "inference.DataType" has no value named FP32. Did '
            "you mean 'TYPE_FP32'?",
        ),
        (
            "instance_group { kind: CPU }",
            'line 1, column 24: Enum type "inference.ModelInstanceGroup.Kind" has no value named CPU. '
            "Did you mean 'KIND_CPU'?",
        ),
        (
            "instance_group { secondary_devices { kind: KIND_NVD } }",
            'line 1, column 44: Enum type "inference.ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind"'
            " has no value named KIND_NVD. Did you mean 'KIND_NVDLA'?",
        ),
        (
            'max_batch_size: "abc"',
            'line 1, column 17: Couldn\'t parse integer: "abc". Write a number, without quotes.',
        ),
        (
            "max_batch_size: 99999999999",
            "line 1, column 17: Value out of range: 99999999999. Use a number that fits the field.",
        ),
        (
            'name: "a" name: "b"',
            'line 1, column 17: Message type "inference.ModelConfig" should not have multiple "name" fields. '
            "Give 'name' once.",
        ),
        ("name: a", "line 1, column 7: Expected string but found: 'a'. Put the text in quotes."),
        (
            "dynamic_batching { preserve_ordering: maybe }",
            'line 1, column 39: Expected "true" or "false". Write true or false, without quotes.',
        ),
        (
            "input [ {",
            "line 1, column 9: Expected \"}\". Write fields as 'name: value' or 'name { ... }', "
            "lists as '[ a, b ]', "
            "and close every bracket and quote.",
        ),
    ],
)
def test_errors_name_line_cause_and_remedy(text: str, detail: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_pbtxt(text, SOURCE)
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == f"failed to read text proto from {SOURCE}: {detail}"


def test_two_schedulers() -> None:
    with pytest.raises(InferError) as caught:
        parse_pbtxt("dynamic_batching {} sequence_batching {}", SOURCE)
    assert "Keep either 'sequence_batching' or 'dynamic_batching'." in caught.value.message


def test_unknown_field_without_a_likely_name_lists_those_there_are() -> None:
    with pytest.raises(InferError) as caught:
        parse_pbtxt("input { xyzzy: 3 }", SOURCE)
    assert caught.value.message.endswith(
        "Use a field it has: allow_ragged_batch, data_type, dims, format, is_non_linear_format_io, "
        "is_shape_tensor, name, optional, reshape."
    )


@pytest.mark.parametrize(
    "text",
    [
        "[" * 300_000,
        "input {" * 100_000,
        "(" * 100_000,
        "input { dims: " + "[" * 300_000,
        "\x00\x01\x02",
        "x" * 200_000,
        "#" * (MAX_CONFIG_BYTES + 1),
        'name: "' + "a" * 100_000,
    ],
)
def test_hostile_text_ends_in_a_short_refusal(text: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_pbtxt(text, SOURCE)
    assert caught.value.message.startswith(f"failed to read text proto from {SOURCE}: ")
    assert len(caught.value.message) < 2000


def test_json_accepts_a_single_value_for_a_list() -> None:
    config = parse_config_json(
        '{"instance_group":{"count":2,"kind":"kind_cpu"},"input":{"name":"A","dims":-1},"parameters":{}}'
    )
    assert [(group.count, group.kind) for group in config.instance_group] == [(2, 2)]
    assert [list(tensor.dims) for tensor in config.input] == [[-1]]


def test_json_takes_numbers_strings_and_any_case_of_enums() -> None:
    config = parse_config_json(
        '{"name":"m","backend":"onnxruntime","input":[{"name":"A","data_type":"type_fp32","dims":[1,"2"]}],'
        '"instance_group":[{"kind":"Kind_Cpu"}],"version_policy":{"specific":{"versions":[1,"2"]}},'
        ""
        '"dynamic_batching":{"priority_queue_policy":{"1":{"timeout_action":"delay"}}},"parameters":{"k":{"string_value":"v"}}}'
    )
    assert list(config.input[0].dims) == [1, 2]
    assert config.input[0].data_type == 11
    assert config.instance_group[0].kind == 2
    assert list(config.version_policy.specific.versions) == [1, 2]
    assert config.dynamic_batching.priority_queue_policy[1].timeout_action == 1


@pytest.mark.parametrize(
    "text",
    [
        '{backend: "python", sequence_batching : {direct: {}}, '
        'parameters: {"a: ,]": {string_value: "\\",b: "}}}',
        "{'backend':'python','sequence_batching':{'direct':{}},"
        "'parameters':{'a: ,]':{'string_value':'\",b: '}}}",
        '{"backend":"python","sequence_batching":{"direct":{},},'
        '"parameters":{"a: ,]":{"string_value":"\\",b: "},},}',
    ],
)
def test_json_may_be_as_lenient_as_protobufs(text: str) -> None:
    config = parse_config_json(text)

    assert config.backend == "python" and config.sequence_batching.HasField("direct")
    assert config.parameters["a: ,]"].string_value == '",b: '


@pytest.mark.parametrize("part", ['\\"', "'", "a", "a ", ", ", "a:", '"', "\\'"])
def test_text_that_is_no_json_is_refused_in_linear_time(part: str) -> None:
    with pytest.raises(InferError, match="not valid JSON"):
        parse_config_json("{" + part * (500_000 // len(part)))


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            '{"max_batchsize":3}',
            'Message type "inference.ModelConfig" has no field named "max_batchsize" at "ModelConfig". '
            "Did you mean 'max_batch_size'?",
        ),
        ("[1]", "expected a JSON object with the fields of a model configuration"),
        ("", "not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"name":"a","name":"b"}', "not valid JSON: duplicate key 'name'"),
        ("[" * 200_000, "the JSON is nested too deeply"),
        (
            '{"input":[{"data_type":"FP32"}]}',
            "Failed to parse input field: Failed to parse data_type field: Invalid enum value "
            "FP32 for enum type "
            "inference.DataType at ModelConfig.input[0].data_type. Did you mean 'TYPE_FP32'?",
        ),
        (
            '{"max_batch_size":1.5}',
            "Failed to parse max_batch_size field: Couldn't parse integer: 1.5 at "
            "ModelConfig.max_batch_size. "
            "Write a number, without quotes.",
        ),
        (
            '{"input":3}',
            "Failed to parse input field: repeated field input must be in [] which is 3 at ModelConfig. "
            "Put the value in a list: [ ... ].",
        ),
    ],
)
def test_json_errors(text: str, detail: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_config_json(text)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == f"Invalid config override: {detail}"


@pytest.mark.parametrize(
    "text",
    [
        '{"input":' + "[" * 900 + "]" * 900 + "}",
        '{"input":' * 900 + "1" + "}" * 900,
        '{"max_batch_size":1e400}',
        '{"max_batch_size":NaN}',
        '{"name":"\\ud800"}',
        '{"parameters":3}',
        '{"parameters":{"a":3}}',
        '{"dynamic_batching":{},"sequence_batching":{}}',
        '{"max_batch_size":' + "9" * 5000 + "}",
    ],
)
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(InferError) as caught:
        parse_config_json(text)
    assert caught.value.message.startswith("Invalid config override: ")
