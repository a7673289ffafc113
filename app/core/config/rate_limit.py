"""Resources that executions occupy: demands of the configuration, counts of `--rate-limit-resource`.

Source: ParseRateLimiterResourceOption (src/command_line_parser.cc of Triton's server) and ResourceManager
(src/rate_limiter.cc of its core).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from app.core.errors import invalid_arg

if TYPE_CHECKING:  # The arbiter's process does not import protobuf.
    from tritonclient.grpc import model_config_pb2 as mc

GLOBAL: Final = -2
"""Device of a resource that is shared by all devices."""

ANY_DEVICE: Final = -1
"""Device of a count that applies to each device."""


class Resource(NamedTuple):
    """A named resource of one device; those of instances on a CPU belong to device 0, as in Triton."""

    device: int
    name: str


ResourceCounts = dict[int, dict[str, int]]
"""Counts of resources that the operator set, by device and name."""


class Demand(msgspec.Struct, frozen=True, array_like=True):
    """Resources that an execution of an instance occupies, as (device, name, count), and its priority."""

    resources: tuple[tuple[int, str, int], ...]
    priority: int = 1

    @classmethod
    def from_group(cls, group: "mc.ModelInstanceGroup", device: int) -> "Demand | None":
        """Return the demand of an instance on a device; None without resources."""
        # Of a name given twice the last count applies, as in Triton. `global` is a keyword of Python.
        counts = {
            (GLOBAL if getattr(each, "global") else device, each.name): each.count
            for each in group.rate_limiter.resources
        }
        if not counts:
            return None
        found = tuple((where, name, count) for (where, name), count in counts.items())
        return cls(found, max(1, group.rate_limiter.priority))

    def by_resource(self) -> dict[Resource, int]:
        """Return the counts by resource."""
        return {Resource(device, name): count for device, name, count in self.resources}


def parse_resources(entries: Iterable[str]) -> ResourceCounts:
    """Parse `--rate-limit-resource`, RESOURCE:COUNT[:DEVICE]; of two counts the lesser applies, as in Triton.

    Raises:
        ValueError: an entry of another form; Triton's text.
    """
    found: ResourceCounts = {}
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


def resource_limits(demands: Iterable[Demand], explicit: ResourceCounts) -> dict[Resource, int]:
    """Return the available count of each resource that is demanded.

    That is the highest demand of any instance, or the operator's count; once the operator sets any count,
    resources without one are absent.

    Raises:
        InferError: INVALID_ARG, Triton's text, when an instance could never execute, or when a resource is
            both global and of a device.
    """
    most: dict[Resource, int] = {}
    for demand in demands:
        for resource, count in demand.by_resource().items():
            most[resource] = max(count, most.get(resource, 0))
    if explicit:
        most = {resource: _configured(resource, count, explicit) for resource, count in most.items()}
    of_devices = {resource.name for resource in most if resource.device != GLOBAL}
    for resource in most:
        if resource.device == GLOBAL and resource.name in of_devices:
            raise invalid_arg(
                f'Resource "{resource.name}" is present as both global and device-specific resource in the '
                "model configuration."
            )
    return most


def _configured(resource: Resource, least: int, explicit: Mapping[int, Mapping[str, int]]) -> int:
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
