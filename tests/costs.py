"""What a piece of code costs, and nothing that other tests have left in the process."""

import gc
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded(seconds: float, memory: int | None = None) -> Iterator[None]:
    """Fail where the code in the block takes more processor time, or more bytes, even for a moment.

    Collections of garbage that fall into the block look at its own objects only.

    Args:
        seconds: of processor time, of all threads; with `memory` measuring is included, which is slow.
        memory: bytes by which Python's allocations may grow; None: not measured.
    """
    gc.freeze()
    if memory is not None:
        tracemalloc.start()
    try:
        began = time.process_time()
        yield
        spent = time.process_time() - began
        assert spent < seconds
        if memory is not None:
            assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()
