"""The JSON of a configuration, field by field as Triton prints it."""

import json

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config import json as config_json
from app.core.config.json import config_to_json
from app.core.config.text import parse_config_json
from tests.unit.backend_harness import config as parse

# ValidateModelConfigInt64 in Triton's core lists these; a new one needs a decision in config_json.
INT64_FIELDS = {
    "input.dims",
    "input.reshape.shape",
    "output.dims",
    "output.reshape.shape",
    "version_policy.specific.versions",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.priority_queue_policy.value.default_timeout_microseconds",
    "dynamic_batching.priority_levels",
    "dynamic_batching.priority_queue_policy.key",
    "dynamic_batching.default_priority_level",
    "sequence_batching.direct.max_queue_delay_microseconds",
    "sequence_batching.state.dims",
    "sequence_batching.state.initial_state.dims",
    "sequence_batching.oldest.max_queue_delay_microseconds",
    "sequence_batching.max_sequence_idle_microseconds",
    "ensemble_scheduling.step.model_version",
    "model_warmup.inputs.value.dims",
    "optimization.cuda.graph_spec.input.value.dim",
    "optimization.cuda.graph_spec.graph_lower_bound.input.value.dim",
    "instance_group.secondary_devices.device_id",
}


def int64_fields(message: Descriptor, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for field in message.fields:
        if field.message_type is not None:
            found |= int64_fields(field.message_type, f"{prefix}{field.name}.")
        elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
            found.add(prefix + field.name)
    return found


def test_no_64_bit_field_is_new() -> None:
    assert int64_fields(mc.ModelConfig.DESCRIPTOR) == INT64_FIELDS
    strings = config_json._LEFT_AS_STRINGS
    assert len(strings) == 3


SMALL_AS_JSON = {
    "name": "m",
    "platform": "onnxruntime_onnx",
    "backend": "onnxruntime",
    "runtime": "",
    "version_policy": {"latest": {"num_versions": 1}},
    "max_batch_size": 8,
    "input": [
        {
            "name": "A",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1, 3],
            "reshape": {"shape": [3, -1]},
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ],
    "output": [
        {
            "name": "B",
            "data_type": "TYPE_STRING",
            "dims": [1],
            "label_filename": "labels.txt",
            "is_shape_tensor": False,
            "is_non_linear_format_io": False,
        }
    ],
    "batch_input": [],
    "batch_output": [],
    "dynamic_batching": {
        "preferred_batch_size": [8],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 2,
        "default_priority_level": 0,
        "priority_queue_policy": {
            "2": {
                "timeout_action": "DELAY",
                "default_timeout_microseconds": 5,
                "allow_timeout_override": False,
                "max_queue_size": 0,
            }
        },
    },
    "instance_group": [
        {
            "name": "m",
            "kind": "KIND_CPU",
            "count": 1,
            "gpus": [],
            "secondary_devices": [{"kind": "KIND_NVDLA", "device_id": "7"}],
            "profile": [],
            "passive": False,
            "host_policy": "",
        }
    ],
    "default_model_filename": "",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
}


def test_a_small_configuration_whole() -> None:
    config = parse(
        """
        name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" max_batch_size: 8
        version_policy { latest { num_versions: 1 } }
        input { name: "A" data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ 3, -1 ] } }
        output { name: "B" data_type: TYPE_STRING dims: 1 label_filename: "labels.txt" }
        dynamic_batching { preferred_batch_size: 8 priority_levels: 2
          priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 5 } } }
        instance_group { name: "m" kind: KIND_CPU count: 1 secondary_devices { device_id: 7 } }
        """
    )
    assert config_to_json(config) == SMALL_AS_JSON


def test_fields_come_in_the_order_of_the_message() -> None:
    found = list(config_to_json(parse('backend: "b" name: "a" parameters { key: "k" value {} }')))
    declared = [field.name for field in mc.ModelConfig.DESCRIPTOR.fields]
    assert found == sorted(found, key=declared.index)


def test_triton_forgot_some_64_bit_strings() -> None:
    config = parse(
        """
        sequence_batching {
          direct { minimum_slot_utilization: 0.9 max_queue_delay_microseconds: 3 }
          state { input_name: "i" dims: 4 initial_state { name: "z" dims: 4 zero_data: true } }
        }
        optimization { cuda { graph_spec { batch_size: 1 input { key: "i" value { dim: 6 } } } } }
        """
    )
    shown = config_to_json(config)
    batching = shown["sequence_batching"]
    assert batching["direct"] == {"max_queue_delay_microseconds": 3, "minimum_slot_utilization": 0.9}
    assert batching["state"][0]["dims"] == [4]
    assert batching["state"][0]["initial_state"][0]["dims"] == ["4"]
    assert batching["state"][0]["initial_state"][0]["zero_data"] is True
    assert "data_file" not in batching["state"][0]["initial_state"][0]
    assert shown["optimization"]["cuda"]["graph_spec"][0]["input"]["i"] == {"dim": ["6"]}


@pytest.mark.parametrize(("text", "shown"), [("0.9", "0.9"), ("1", "1"), ("0", "0"), ("0.25", "0.25")])
def test_whole_floats_have_no_fraction(text: str, shown: str) -> None:
    config = parse(f"sequence_batching {{ direct {{ minimum_slot_utilization: {text} }} }}")
    assert str(config_to_json(config)["sequence_batching"]["direct"]["minimum_slot_utilization"]) == shown


def test_what_is_printed_can_be_read_back() -> None:
    config = parse(
        """
        name: "m" version_policy { specific { versions: [ 1, 3 ] } }
        model_warmup {
          name: "w"
          inputs { key: "A" value { data_type: TYPE_FP32 dims: 3 random_data: true } }
        }
        ensemble_scheduling { step { model_name: "a" model_version: -1 input_map { key: "x" value: "y" } } }
        """
    )
    assert parse_config_json(json.dumps(config_to_json(config))) == config


def test_an_empty_configuration_is_an_empty_object() -> None:
    assert config_to_json(mc.ModelConfig()) == {}
