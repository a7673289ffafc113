"""The functions of the compiled library (`shim/host.cpp`, `shim/strategy.cpp`) as Python calls.

Every call releases the GIL. A function that can fail returns an error object, which `check` raises.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, Final

from app.core.errors import TRITON_CODES, Failure, FailureReason, triton_number
from backends.cpp.build import built_library

_OBJECT, _ERROR, _TEXT, _RESULT = c_void_p, c_void_p, c_char_p, POINTER(c_void_p)
_MESSAGE: Final = (c_char_p, c_size_t)
_ON_OBJECT: Final = (_ERROR, (_OBJECT,))
_DELETE: Final = (None, (_OBJECT,))

_FUNCTIONS: Final[dict[str, tuple[Any, Sequence[Any]]]] = {
    "TRITONSERVER_ErrorCode": (c_int, (_ERROR,)),
    "TRITONSERVER_ErrorMessage": (c_char_p, (_ERROR,)),
    "TRITONSERVER_ErrorDelete": _DELETE,
    "nereid_set_log_levels": (None, (c_int,)),
    "nereid_descriptor": (c_int, ()),
    "nereid_take": (c_void_p, (POINTER(c_size_t),)),
    "nereid_cancel": (None, (c_uint64,)),
    "nereid_respond": (None, (c_uint64, *_MESSAGE)),
    "nereid_answer": (None, (c_uint64, c_int, *_MESSAGE)),
    "nereid_free": (None, (c_void_p,)),
    "nereid_metrics": (c_void_p, (POINTER(c_size_t),)),
    "nereid_backend_new": (_ERROR, (_TEXT, _TEXT, _TEXT, _TEXT, _RESULT)),
    "nereid_backend_delete": _DELETE,
    "nereid_backend_finalize": _ON_OBJECT,
    "nereid_loads_in_parallel": (c_bool, (_OBJECT,)),
    "nereid_has_readiness": (c_bool, (_OBJECT,)),
    "nereid_preferred_groups": (c_void_p, (_OBJECT, POINTER(c_size_t))),
    "nereid_model_new": (_ERROR, (_OBJECT, *_MESSAGE, _RESULT)),
    "nereid_model_delete": _DELETE,
    "nereid_model_initialize": _ON_OBJECT,
    "nereid_model_finalize": _ON_OBJECT,
    "nereid_model_config": (c_char_p, (_OBJECT,)),
    "nereid_model_configure": (_ERROR, (_OBJECT, *_MESSAGE)),
    "nereid_instance_new": (_ERROR, (_OBJECT, *_MESSAGE, _RESULT)),
    "nereid_instance_delete": _DELETE,
    "nereid_instance_initialize": _ON_OBJECT,
    "nereid_instance_finalize": _ON_OBJECT,
    "nereid_instance_ready": _ON_OBJECT,
    "nereid_sequence_end": (None, (_OBJECT, *_MESSAGE)),
    "nereid_execute": (
        c_void_p,
        (_OBJECT, *_MESSAGE, c_uint64, c_void_p, c_size_t, POINTER(c_size_t)),
    ),
    "nereid_strategy_new": (_ERROR, (_TEXT, _OBJECT, _RESULT)),
    "nereid_strategy_delete": _ON_OBJECT,
    "nereid_batch_new": (_ERROR, (_OBJECT, _RESULT)),
    "nereid_batch_delete": (_ERROR, (_OBJECT, c_void_p)),
    "nereid_include": (_ERROR, (_OBJECT, *_MESSAGE, c_void_p, POINTER(c_bool))),
}


@cache
def shim() -> ctypes.CDLL:
    """Return the compiled library, for all backends of this process: their symbols refer to it.

    Raises:
        InferError: see `built_library`.
    """
    library = ctypes.CDLL(str(built_library()), mode=ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check(error: int | None) -> None:
    """Raise the error that a function has returned, if any.

    Raises:
        InferError: of its code and text.
    """
    if not error:
        return
    library = shim()
    code, text = library.TRITONSERVER_ErrorCode(error), library.TRITONSERVER_ErrorMessage(error)
    library.TRITONSERVER_ErrorDelete(error)
    raise failure_of(code, text.decode(errors="replace")).error()


def failure_of(code: int, text: str) -> Failure:
    """Return the failure of an error code of Triton's."""
    known = 0 <= code < len(TRITON_CODES)
    return Failure(TRITON_CODES[code if known else 0], text, FailureReason.BACKEND)


def number_of(failure: Failure) -> int:
    """Return the number of a failure's code in Triton's API."""
    return triton_number(failure.code)


def make(function: Any, *arguments: Any) -> int:
    """Call a function that returns a new object by its last parameter; return the object.

    Raises:
        InferError: it could not be made.
    """
    result = c_void_p()
    check(function(*arguments, byref(result)))
    return result.value or 0


def read(function: Any, *arguments: Any) -> bytes:
    """Call a function that returns a message, and copy that."""
    size = c_size_t()
    address = function(*arguments, byref(size))
    return ctypes.string_at(address, size.value)
