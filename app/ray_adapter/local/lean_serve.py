"""Imports Ray Serve without pandas.

Where pandas is installed, Serve 2.60 imports it, and so pyarrow, to encode data frames that deployments
return over HTTP: half a second of a processor in each process, and a thread.
"""

import sys
from importlib import import_module
from typing import Any, Final

_PANDAS: Final = "pandas"


class _LikeDataFrame(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, getattr(sys.modules.get(_PANDAS), "DataFrame", ()))


class DataFrame(metaclass=_LikeDataFrame):
    """The class of which pandas' data frames are instances, whenever pandas is imported."""


def _records(frame: Any) -> Any:
    return frame.to_dict(orient="records")


def import_serve() -> None:
    """Import `ray.serve`; it encodes data frames as it would with pandas."""
    modules: dict[str, Any] = sys.modules
    if _PANDAS in modules or "ray.serve" in modules:
        import_module("ray.serve")
        return
    modules[_PANDAS] = None  # an import of it fails
    try:
        import_module("ray.serve")
    finally:
        del modules[_PANDAS]
    import_module("ray.serve._private.utils").serve_encoders[DataFrame] = _records


import_serve()
