"""Strings given by models, which Triton's binding (pybind11) accepts as bytes too."""

from app.core.errors import encodable


def as_text(value: str | bytes) -> str:
    """Return an encodable string, decoded from UTF-8 if it is given as bytes.

    Raises:
        TypeError: it is neither, as from Triton's binding.
    """
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return encodable(value)
