"""What is still there when nobody needs it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def new_objects_only() -> Iterator[None]:
    """Have the collector and `alive` look at what is made from now on, and not at what other tests have made.

    In a long run that is so much that each look takes seconds.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def alive(kind: type) -> int:
    """How many objects of a class there are, once the collector has looked."""
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())
