"""`import triton_python_backend_utils` outside of a server: in tests and notebooks of those who write models.

In a server, models get this module's content without this file, in an environment of their own too.
"""

import sys
from typing import TYPE_CHECKING, Any

from nereid.internals import load_internals

load_internals()

# After the call, which decides whose packages these are.
from backends.python.api import pb_utils  # noqa: E402

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = pb_utils
