"""Parameters of requests and responses as models give them, with the texts of Triton's python_backend."""

from typing import Any, Final

from app.core.tensors import Parameters, ParameterValue
from backends.python.api.errors import TritonModelException

_INT64: Final = range(-(1 << 63), 1 << 63)
_PLAIN: Final[dict[type, Any]] = {bool: bool, int: int, float: float, str: str.__str__}
"""What makes a plain value of one whose type is derived from these, as numpy's float64 is."""


def checked(parameters: Any) -> Parameters:
    """A copy of a model's parameters.

    Raises:
        TritonModelException: no dict, or one with what no protocol carries.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    return {_name(name): _value(value) for name, value in parameters.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
    return name


def _value(value: Any) -> ParameterValue:
    if isinstance(value, int) and value not in _INT64:
        raise TritonModelException(f"Expect parameters values of at most 64 bits, found {value}")
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            made: ParameterValue = plain(value)
            return made
    raise TritonModelException(
        f"Expect parameters values to have type bool/int/str, found type {type(value)}"
    )
