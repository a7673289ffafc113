"""Strings given by models, which Triton's binding (pybind11) accepts as bytes too."""


def as_text(value: str | bytes) -> str:
    """Return a string, decoded from UTF-8 if it is given as bytes."""
    return value.decode() if isinstance(value, bytes) else value
