"""Pickles in files of PyTorch, which are not loaded: a pickle executes code.

PyTorch's own text advises to load them all the same. Imported in the environments of eager models too.
"""

import re
from pickle import UnpicklingError
from typing import Final

_GLOBAL: Final = re.compile(r"GLOBAL (\S+)")


def refused(error: Exception) -> str:
    """Return what a file has that is not loaded; "" for another failure."""
    if not isinstance(error, UnpicklingError):
        return ""
    found = _GLOBAL.search(str(error))
    what = f"pickled Python objects ({found[1]})" if found else "pickled objects that are no tensors"
    return f"it has {what}, which are not loaded: that would execute code"
