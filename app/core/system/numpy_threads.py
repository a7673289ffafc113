"""The threads of numpy's linear algebra in a process that was forked."""

import ctypes
import os
from importlib import import_module


def follow_variable() -> None:
    """Use OMP_NUM_THREADS threads, which numpy's library reads only when it is loaded.

    A fork has the library from before Ray sets the variable to the processors that it has reserved.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0 and "OPENBLAS_NUM_THREADS" not in os.environ:
        # Has what the libraries export that this one needs; another build of numpy has another library.
        library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
        change = getattr(library, "scipy_openblas_set_num_threads64_", None)
        if change is not None:
            change(int(wanted))


def follow_processors() -> None:
    """Use as many threads as there are processors in a fork whose parent had loaded the library with one."""
    if "OMP_NUM_THREADS" in os.environ:
        follow_variable()
    else:
        os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
        follow_variable()
        del os.environ["OMP_NUM_THREADS"]
