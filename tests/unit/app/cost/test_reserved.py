"""What is kept for a replica."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.cost.reserved import reserved_bytes, reserved_cores


def parameters(**values: str) -> str:
    return "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in values.items())


@pytest.mark.parametrize(
    ("config", "cores"),
    [
        ("", 1.0),
        ("instance_group { count: 2 }", 2.0),
        ("instance_group { count: 99 }", 4.0),
        ("instance_group { count: 2 }" + parameters(ray_num_cpus="0.5"), 0.5),
        (parameters(intra_op_thread_count="3") + "instance_group { count: 1 }", 3.0),
        (parameters(ray_num_cpus="many"), 1.0),
    ],
)
def test_cores(config: str, cores: float) -> None:
    assert reserved_cores(text_format.Parse(config, mc.ModelConfig()), 4) == cores


def test_bytes() -> None:
    config = text_format.Parse(parameters(ray_memory_bytes="1000"), mc.ModelConfig())
    assert (reserved_bytes(config), reserved_bytes(mc.ModelConfig())) == (1000.0, 0.0)
