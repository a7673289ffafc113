"""Imports Ray Serve without pandas and pyarrow, and spares it what it does again and again.

Where pandas is installed, Serve 2.60 imports it, and so pyarrow, to encode data frames that deployments
return over HTTP: half a second of a processor in each process, and a thread. Ray imports pyarrow to pickle
slices of its tables without the rest.
"""

import sys
from importlib import import_module
from typing import Any, Final

from app.ray_adapter.local.changes import applies

_PANDAS: Final = "pandas"
_ARROW: Final = "pyarrow"


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
    if _PANDAS in modules or "ray.serve" in modules or not applies("serve-without-pandas"):
        import_module("ray.serve")
        return
    modules[_PANDAS] = None  # an import of it fails
    try:
        import_module("ray.serve")
    finally:
        del modules[_PANDAS]
    import_module("ray.serve._private.utils").serve_encoders[DataFrame] = _records


def pickle_routers_once() -> None:
    """Have Serve pickle the class of a request router once.

    Ray 2.60 does so for each configuration it makes: several at each deployment, and one for each application
    whenever the status of all is asked for; 15 ms of a processor each.
    """
    config: Any = import_module("ray.serve.config").RequestRouterConfig
    pickle = config._serialize_request_router_cls
    pickled: dict[object, bytes] = {}

    def pickle_once(self: Any) -> None:
        if self.request_router_class in pickled:
            self.set_serialized_request_router_cls(pickled[self.request_router_class])
        else:
            pickle(self)  # which turns a class, or none, into the name of one
            pickled[self.request_router_class] = self.get_serialized_request_router_cls()

    config._serialize_request_router_cls = pickle_once


def leave_arrow_out() -> None:
    """Have Ray register how it pickles tables of pyarrow only in a process that has imported it before."""
    arrow: Any = import_module("ray._private.arrow_serialization")
    register = arrow._register_custom_datasets_serializers

    def register_loaded(context: Any) -> None:
        if _ARROW in sys.modules:
            register(context)

    arrow._register_custom_datasets_serializers = register_loaded


import_serve()
if applies("serve-without-pandas"):
    leave_arrow_out()
if applies("routers-pickled-once"):
    pickle_routers_once()
