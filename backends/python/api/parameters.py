"""Checks of request and response parameters that models set, with Triton's texts."""

from typing import Any, Final

from app.core.errors import encodable
from app.core.tensors import Parameters, ParameterValue
from backends.python.api.errors import TritonModelException

_INT64: Final = range(-(1 << 63), 1 << 63)
_PLAIN: Final[dict[type, Any]] = {bool: bool, int: int, float: float, str: str.__str__}
"""Conversions of subclasses, such as numpy's float64, to the plain types."""
_RESPONSE_KINDS: Final = (bool, int, str)
"""Types that Triton accepts; requests may also have the floating-point parameters of a client's request."""


def checked(parameters: Any) -> Parameters:
    """Return a copy of a model's parameters with plain values.

    Raises:
        TritonModelException: for a value that is no dict, or a parameter of a type without a wire form.
    """
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    return {_name(name): _value(value) for name, value in parameters.items()}


def checked_response(parameters: Any) -> Parameters:
    """Return a copy of a response's parameters, which `checked` applies to, without floats.

    Raises:
        TritonModelException: as `checked`, and for a float.
    """
    made = checked(parameters)
    for value in parameters.values():
        if not isinstance(value, _RESPONSE_KINDS):
            raise _wrong_kind(value)
    return made


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
    return _text("keys", name)


def _text(what: str, text: str) -> str:
    if encodable(text) != text:
        raise TritonModelException(f"Expect parameters {what} that UTF-8 can encode, found {text!r}")
    return text


def _value(value: Any) -> ParameterValue:
    if isinstance(value, int) and value not in _INT64:
        raise TritonModelException(f"Expect parameters values of at most 64 bits, found {value}")
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            made: ParameterValue = plain(value)
            return _text("values", made) if isinstance(made, str) else made
    raise _wrong_kind(value)


def _wrong_kind(value: Any) -> TritonModelException:
    return TritonModelException(
        f"Expect parameters values to have type bool/int/str, found type {type(value)}"
    )
