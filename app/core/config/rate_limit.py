"""Resources that executions take: what the configuration and `--rate-limit-resource` say of them.

Source: ParseRateLimiterResourceOption (src/command_line_parser.cc of Triton's server) and ResourceManager
(src/rate_limiter.cc of its core).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from app.core.errors import invalid_arg

if TYPE_CHECKING:  # the arbiter's process does without
    from tritonclient.grpc import model_config_pb2 as mc

GLOBAL: Final = -2
"""The device of a resource that exists once, whatever device an instance runs on."""

ANY_DEVICE: Final = -1
"""The device of an explicit count that holds for each device."""


class Resource(NamedTuple):
    """A named resource of one device; those of instances on a CPU belong to device 0, as in Triton."""

    device: int
    name: str


Explicit = dict[int, dict[str, int]]
"""Counts that the operator gave, by device and name."""


class Demand(msgspec.Struct, frozen=True, array_like=True):
    """What one execution of an instance takes, as (device, name, count), and the instance's priority."""

    resources: tuple[tuple[int, str, int], ...]
    priority: int = 1

    @classmethod
    def of(cls, group: "mc.ModelInstanceGroup", device: int) -> "Demand | None":
        """The demand of an instance on a device; None when it takes nothing."""
        # A name that comes twice has the last count, as in Triton. `global` is a keyword of Python.
        counts = {
            (GLOBAL if getattr(each, "global") else device, each.name): each.count
            for each in group.rate_limiter.resources
        }
        if not counts:
            return None
        found = tuple((where, name, count) for (where, name), count in counts.items())
        return cls(found, max(1, group.rate_limiter.priority))

    def needs(self) -> dict[Resource, int]:
        """The same by resource."""
        return {Resource(device, name): count for device, name, count in self.resources}


def parse_resources(entries: Iterable[str]) -> Explicit:
    """Read `--rate-limit-resource`, RESOURCE:COUNT[:DEVICE]; of two counts the lesser holds, as in Triton.

    Raises:
        ValueError: an entry of another form; Triton's text.
    """
    found: Explicit = {}
    for entry in entries:
        name, *numbers = entry.split(":")
        if not (name and len(numbers) in (1, 2) and all(number.isdecimal() for number in numbers)):
            raise ValueError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                f"'<resource_name>:<count>'. Got {entry}"
            )
        count, device = int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else ANY_DEVICE
        of_device = found.setdefault(device, {})
        of_device[name] = min(count, of_device.get(name, count))
    return found


def limits(demands: Iterable[Demand], explicit: Explicit) -> dict[Resource, int]:
    """How much there is of each resource that is demanded.

    That is the most any one instance demands, or what the operator gave; a resource that the operator does
    not name among others counts as absent.

    Raises:
        InferError: INVALID_ARG, Triton's text, when an instance could never execute, or when a resource is
            both global and of a device.
    """
    most: dict[Resource, int] = {}
    for demand in demands:
        for resource, count in demand.needs().items():
            most[resource] = max(count, most.get(resource, 0))
    if explicit:
        most = {resource: _given(resource, count, explicit) for resource, count in most.items()}
    of_devices = {resource.name for resource in most if resource.device != GLOBAL}
    for resource in most:
        if resource.device == GLOBAL and resource.name in of_devices:
            raise invalid_arg(
                f'Resource "{resource.name}" is present as both global and device-specific resource in the '
                "model configuration."
            )
    return most


def _given(resource: Resource, least: int, explicit: Mapping[int, Mapping[str, int]]) -> int:
    if resource.device == GLOBAL:
        places = list(explicit.values())
    else:
        places = [explicit.get(device, {}) for device in (resource.device, ANY_DEVICE)]
    count = max((place.get(resource.name, 0) for place in places), default=0)
    if count < least:
        raise invalid_arg(
            f'Resource count for "{resource.name}" is limited to {count} which will prevent scheduling of '
            f"one or more model instances, the minimum required count is {least}"
        )
    return count
