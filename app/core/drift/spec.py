"""How a model's requests are watched: the contents of `drift.yaml` in the model's directory.

tritonserver ignores the file. It is read when the model is loaded.
"""

from typing import Annotated, Literal

import msgspec

Action = Literal["log", "tag", "reject"]
Number = int | float | str
"""Text where a tensor has strings."""


class InputRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is done with a request with values of an input that it should not have.

    Attributes:
        range: the least and the greatest number.
        outside: what is done with numbers outside of `range`.
        nan: what is done with NaN; None for nothing.
        values: the only values that are known.
        new: what is done with others; without `values` the reference's categories are those known.
    """

    range: tuple[float, float] | None = None
    outside: Action = "log"
    nan: Action | None = None
    values: tuple[Number, ...] = ()
    new: Action | None = None


class DriftSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is watched of a model, and how strictly.

    Attributes:
        tolerance: mean squared relative difference of shares that is no change.
        alpha: one false alarm in 1 / alpha windows, on average, or fewer.
        rows_per_second: that each ingress counts at most, at random; 0 counts none.
        inputs: rules for inputs, by name.
    """

    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.005
    alpha: Annotated[float, msgspec.Meta(gt=0, lt=0.5)] = 0.001
    rows_per_second: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 200.0
    inputs: dict[str, InputRule] = {}
