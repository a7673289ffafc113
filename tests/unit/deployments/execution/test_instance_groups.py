"""Which instances a configuration asks for, and what a change of it keeps."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.rate_limit import GLOBAL, Demand
from backends.base import Model, SecondaryDevice
from deployments.execution.instance_groups import Placement, change, placements


def config(groups: str, backend: str = "identity") -> mc.ModelConfig:
    text = f'name: "m" backend: "{backend}" instance_group [ {groups} ]'
    return text_format.Parse(text, mc.ModelConfig())


CPU = '{ name: "a" count: 2 kind: KIND_CPU }'


def test_names_kinds_and_devices() -> None:
    gpu = '{ name: "g" count: 2 kind: KIND_GPU gpus: [ 0, 3 ] }'
    model = '{ name: "x" count: 1 kind: KIND_MODEL host_policy: "mine" }'
    found = placements(config(f"{CPU}, {gpu}, {model}"))
    assert [(p.name, p.kind, p.device, p.host_policy) for p in found] == [
        ("a_0", "CPU", 0, "cpu"),
        ("a_1", "CPU", 0, "cpu"),
        ("g_0_gpu0", "GPU", 0, "gpu_0"),
        ("g_1_gpu0", "GPU", 0, "gpu_0"),
        ("g_0_gpu3", "GPU", 3, "gpu_3"),
        ("g_1_gpu3", "GPU", 3, "gpu_3"),
        ("x_0", "MODEL", 0, "mine"),
    ]


def test_instances_have_their_optimization_profiles(tmp_path: Path) -> None:
    (placement,) = placements(config('{ name: "g" count: 1 kind: KIND_GPU gpus: 2 profile: ["0", "3"] }'))
    instance = placement.make_instance(Model(config(CPU), 1, tmp_path), 0)
    assert (instance.device_id, instance.profiles) == (2, ("0", "3"))


def test_backend_gets_the_secondary_devices() -> None:
    devices = "secondary_devices { kind: KIND_NVDLA device_id: 3 } secondary_devices { device_id: -1 }"
    asked = config(
        f'{{ name: "a" count: 2 kind: KIND_CPU {devices} }}, {{ name: "b" count: 1 kind: KIND_CPU }}'
    )
    model = Model(asked, 1, Path("m"))
    instances = [placement.make_instance(model, index) for index, placement in enumerate(placements(asked))]
    both = (SecondaryDevice("KIND_NVDLA", 3), SecondaryDevice("KIND_NVDLA", -1))
    assert [instance.secondary_devices for instance in instances] == [both, both, ()]


def test_a_replica_has_all_instances_of_a_python_model() -> None:
    passive = '{ name: "p" count: 1 kind: KIND_CPU passive: true }'
    gpu = '{ name: "g" count: 1 kind: KIND_GPU gpus: [ 0, 1 ] }'
    asked = config(f"{passive}, {CPU}, {gpu}", "python")
    assert [placement.name for placement in placements(asked)] == [
        "p_0",
        "a_0",
        "a_1",
        "g_0_gpu0",
        "g_0_gpu1",
    ]


def test_demands() -> None:
    resources = 'resources [ { name: "r" count: 2 }, { name: "s" global: true count: 1 } ]'
    limited = f"{{ count: 1 kind: KIND_GPU gpus: 1 rate_limiter {{ {resources} priority: 3 }} }}"
    (placement,) = placements(config(limited))
    assert placement.demand == Demand(((1, "r", 2), (GLOBAL, "s", 1)), 3)
    (passive,) = placements(config(limited.replace("count: 1 kind", "count: 1 passive: true kind")))
    assert passive.demand is None
    (priority_only,) = placements(config("{ count: 1 kind: KIND_CPU rate_limiter { priority: 2 } }"))
    assert priority_only.demand is None


def changed(old: str, new: str) -> tuple[list[str], list[str], list[str]]:
    present = [(placement.signature, placement.name) for placement in placements(config(old))]
    kept, removed, added = change(present, placements(config(new)))
    return kept, removed, [placement.name for placement in added]


CHANGES = [
    (CPU, CPU, (["a_0", "a_1"], [], [])),
    (CPU, CPU.replace("2", "3"), (["a_0", "a_1"], [], ["a_2"])),
    (CPU, CPU.replace("2", "1"), (["a_0"], ["a_1"], [])),
    (CPU, CPU.replace('"a"', '"b"'), (["a_0", "a_1"], [], [])),
    (CPU, f'{{ name: "b" count: 1 kind: KIND_CPU }}, {CPU}', (["a_0", "a_1"], [], ["a_1"])),
    (CPU, CPU.replace("CPU", "MODEL"), ([], ["a_0", "a_1"], ["a_0", "a_1"])),
    (CPU, CPU.replace("kind", "secondary_devices { } kind"), ([], ["a_0", "a_1"], ["a_0", "a_1"])),
    (CPU, CPU.replace("kind", "passive: true kind"), ([], ["a_0", "a_1"], ["a_0", "a_1"])),
    (CPU, CPU.replace("kind", "rate_limiter { priority: 2 } kind"), ([], ["a_0", "a_1"], ["a_0", "a_1"])),
    (
        '{ name: "g" count: 1 kind: KIND_GPU gpus: [ 0, 1 ] }',
        '{ name: "g" count: 1 kind: KIND_GPU gpus: [ 1, 2 ] }',
        (["g_0_gpu1"], ["g_0_gpu0"], ["g_0_gpu2"]),
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES)
def test_changes(old: str, new: str, expected: tuple[list[str], list[str], list[str]]) -> None:
    assert changed(old, new) == expected


def test_each_instance_is_matched_once() -> None:
    kept, removed, added = change([(b"s", 1)], [_placement(b"s"), _placement(b"s")])
    assert (kept, removed, len(added)) == ([1], [], 1)


def _placement(signature: bytes) -> Placement:
    return Placement("n", "CPU", 0, mc.ModelInstanceGroup(), signature)
