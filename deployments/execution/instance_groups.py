"""The instances of a configuration's `instance_group`s, and how to apply a change of them."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.rate_limit import Demand
from backends.base import Instance, Model, SecondaryDevice

T = TypeVar("T")


class Placement(NamedTuple):
    """A planned instance.

    Instances of equal `signature` are interchangeable: it is the device, and everything of the group but its
    name, count and devices (Triton's TritonModelInstance::Signature).
    """

    name: str
    kind: str
    device: int
    group: mc.ModelInstanceGroup
    signature: bytes

    @property
    def host_policy(self) -> str:
        """The name of its host policy; by default that of its kind or GPU, as in Triton."""
        by_kind = f"gpu_{self.device}" if self.kind == "GPU" else self.kind.lower()
        return str(self.group.host_policy) or by_kind

    @property
    def demand(self) -> Demand | None:
        """The resources of an execution; None for a passive instance, which never executes."""
        return None if self.group.passive else Demand.from_group(self.group, self.device)

    def make_instance(self, model: Model, index: int) -> Instance:
        about = (self.name, self.kind, self.device, index, self.group.passive)
        instance = Instance(model, *about, _secondary_devices(self.group))
        instance.profiles = tuple(self.group.profile)
        return instance


def _secondary_devices(group: mc.ModelInstanceGroup) -> list[SecondaryDevice]:
    name = mc.ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind.Name
    return [SecondaryDevice(name(each.kind), each.device_id) for each in group.secondary_devices]


def placements(config: mc.ModelConfig) -> list[Placement]:
    """Plan the instances of a replica, named `<group>_<index>` as in Triton."""
    return [
        placement
        for group in config.instance_group
        for device in (list(group.gpus) or [0])
        for placement in _on_device(group, device)
    ]


def _on_device(group: mc.ModelInstanceGroup, device: int) -> list[Placement]:
    kind = mc.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
    suffix = f"_gpu{device}" if kind == "GPU" else ""
    text = _serialized_without(group, "name", "count", "gpus") + f" {device}".encode()
    return [
        Placement(f"{group.name}_{index}{suffix}", kind, device, group, text) for index in range(group.count)
    ]


class Change(NamedTuple, Generic[T]):
    """The instances that stay, those that are removed, and the planned ones to add."""

    kept: list[T]
    removed: list[T]
    added: list[Placement]


def change(present: Iterable[tuple[bytes, T]], wanted: Iterable[Placement]) -> Change[T]:
    """Match the present instances with the planned ones by signature, so that as many as possible stay.

    Args:
        present: signature and instance, the oldest first.
        wanted: the placements of the new configuration.
    """
    spare: dict[bytes, list[T]] = defaultdict(list)
    for signature, instance in present:
        spare[signature].append(instance)
    kept, added = [], []
    for placement in wanted:
        matching = spare[placement.signature]
        if matching:
            kept.append(matching.pop(0))
        else:
            added.append(placement)
    return Change(kept, [instance for rest in spare.values() for instance in rest], added)


def _serialized_without(group: mc.ModelInstanceGroup, *fields: str) -> bytes:
    copy = mc.ModelInstanceGroup()
    copy.CopyFrom(group)
    for field in fields:
        copy.ClearField(field)
    return bytes(copy.SerializeToString(deterministic=True))
