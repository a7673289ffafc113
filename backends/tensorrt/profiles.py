"""Optimization profiles of a TensorRT engine: their limits, and the choice of one for a batch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from app.core.errors import InferError, invalid_arg
from backends.signature import Shape


class Range(NamedTuple):
    """Smallest, preferred and largest shape of an input in a profile, or values of a shape tensor."""

    low: Shape
    best: Shape
    high: Shape

    def contains(self, actual: Shape) -> bool:
        """Whether sizes, or values, are in range."""
        return len(actual) == len(self.high) and all(
            low <= size <= high for low, size, high in zip(self.low, actual, self.high, strict=True)
        )

    def distance(self, actual: Shape) -> int:
        """Return the distance to the preferred sizes or values."""
        return sum(abs(best - size) for best, size in zip(self.best, actual, strict=True))


class Profile(NamedTuple):
    """An optimization profile: the range of each input's shape and of each shape tensor's values."""

    number: int
    shapes: Mapping[str, Range]
    values: Mapping[str, Range]


def profiles_of(names: Iterable[str], profiles: Sequence[Profile], model: str) -> list[Profile]:
    """Return the profiles that an instance group names by index; the first one when it names none.

    Raises:
        InferError: INVALID_ARG for a name that is no index of this engine's profiles.
    """
    chosen: dict[int, Profile] = {}
    for name in names:
        try:
            index = int(name)
        except ValueError:
            raise invalid_arg(f"unable to parse '{name}': profiles are given by index") from None
        if not 0 <= index < len(profiles):
            raise invalid_arg(
                f"Can not set the specified optimization profile {name}[{index}] for {model}. Expected"
                f" optimization profile index range 0-{len(profiles) - 1}"
            )
        chosen[index] = profiles[index]
    return list(chosen.values()) or [profiles[0]]


def choose(profiles: Sequence[Profile], shapes: Mapping[str, Shape], values: Mapping[str, Shape]) -> Profile:
    """Return the profile whose preferred shapes are nearest to those of a batch.

    Args:
        profiles: the candidates.
        shapes: the shape of every input.
        values: the values of every shape tensor.

    Raises:
        InferError: INVALID_ARG when no profile allows the batch.
    """
    possible = [
        profile
        for profile in profiles
        if all(profile.shapes[name].contains(shape) for name, shape in shapes.items())
        and all(profile.values[name].contains(value) for name, value in values.items())
    ]
    if not possible:
        raise _refusal(profiles[0], shapes, values)
    return min(possible, key=lambda profile: _distance(profile, shapes, values))


def _distance(profile: Profile, shapes: Mapping[str, Shape], values: Mapping[str, Shape]) -> int:
    far = sum(profile.shapes[name].distance(shape) for name, shape in shapes.items())
    return far + sum(profile.values[name].distance(value) for name, value in values.items())


def _refusal(profile: Profile, shapes: Mapping[str, Shape], values: Mapping[str, Shape]) -> InferError:
    """Return why the first profile does not allow a batch."""
    for name, shape in shapes.items():
        text = f"request specifies invalid shape for input '{name}'. Error details: model expected"
        rank = len(profile.shapes[name].high)
        if len(shape) != rank:
            return invalid_arg(f"{text} {rank} dimensions but received {len(shape)} dimensions")
        if wrong := _outside(profile.shapes[name], shape):
            return invalid_arg(f"{text} the shape of dimension {wrong}")
    for name, value in values.items():
        if wrong := _outside(profile.values[name], value):
            return invalid_arg(
                f"invalid values of shape tensor '{name}': expected the value at index {wrong}"
            )
    return invalid_arg("no optimization profile allows the shapes of these inputs together")


def _outside(allowed: Range, actual: Shape) -> str:
    """Describe the first size or value out of range; return "" when there is none."""
    places = enumerate(zip(allowed.low, actual, allowed.high, strict=True))
    return next(
        (
            f"{place} to be between {low} and {high} but received {size}"
            for place, (low, size, high) in places
            if not low <= size <= high
        ),
        "",
    )
