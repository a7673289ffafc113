"""What of a model's requests is recorded: the contents of `tape.yaml` in the model's directory.

tritonserver ignores the file. Nothing is recorded of any model unless the server has `--tape`.
"""

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from app.core.errors import InferError, invalid_arg

Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]
Treatment = Literal["keep", "hash", "size", "drop"]
"""What becomes of a tensor's or parameter's value.

`keep` records it. `hash` records keyed hashes: equal values stay equal. `size` records how many bytes it had,
`drop` that it was there.
"""

PARAMETER: Final = "parameters."
"""Begins the names of parameters among `fields`; `parameters.*` stands for all that are not named."""
_PLACE: Final = re.compile(r"(?P<why>.*) - at `\$\.?(?P<field>[^`]*)`", re.DOTALL)


class SlowRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests are slow: one of the two says so.

    Attributes:
        above_ms: those whose last response comes later than so many milliseconds after their arrival.
        quantile: the slowest 1 - `quantile` of those of the last while.
    """

    above_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    quantile: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] | None = None


class TapeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a model's requests is recorded.

    Attributes:
        rate: share of the requests, chosen at random; None for that of the server (`--tape-rate`).
        errors: every request that fails, too.
        slow: slow requests, too; None for no more of them than of others.
        fields: what becomes of tensors, by name, and of parameters, by `parameters.NAME`. A tensor without an
            entry is kept, unless it is of BYTES, whose size is recorded; a parameter without one is left out.
        steps: also requests of ensembles and other models, as far as they pass through an ingress.
        replay: `never`: the rows are not sent to any model again.
    """

    rate: Rate | None = None
    errors: bool = True
    slow: SlowRule | None = None
    fields: dict[str, Treatment] = {}
    steps: bool = False
    replay: Literal["allowed", "never"] = "allowed"


def parse_spec(fields: Any, source: str) -> TapeSpec:
    """Return what a YAML document says; None is an empty one.

    Args:
        fields: the document.
        source: what an error calls it.

    Raises:
        InferError: INVALID_ARG with source, field and reason.
    """
    try:
        spec = msgspec.convert({} if fields is None else fields, TapeSpec)
    except msgspec.ValidationError as error:
        raise _fault(source, str(error)) from None
    slow = spec.slow
    if slow is not None and (slow.above_ms is None) == (slow.quantile is None):
        raise invalid_arg(f"{source}: slow: expected one of `above_ms` and `quantile`")
    for name, treatment in spec.fields.items():
        if name.startswith(PARAMETER) and treatment == "size":
            raise invalid_arg(f"{source}: fields: '{name}': a parameter is kept, hashed or dropped")
    return spec


def _fault(source: str, message: str) -> InferError:
    place = _PLACE.fullmatch(message)
    field, why = (place["field"], place["why"]) if place else ("", message)
    return invalid_arg(": ".join(filter(None, (source, field, why))))
