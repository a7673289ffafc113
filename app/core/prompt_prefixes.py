"""Which replica prompts go to: those that begin alike to the same one, whose cache has their beginning."""

from collections.abc import Sequence
from hashlib import blake2b
from math import ceil
from typing import Final

from app.core.tensors import InferRequest

_KEY: Final = "prompt_cache_key"
"""A parameter by which a client says which of its prompts begin alike."""
_PROMPTS: Final = ("text_input", "messages")
_SALT: Final = "cache_salt"
_BYTES: Final = 512 + 4  # the length of a text precedes it
_SLACK: Final = 1.25


def prefix_of(request: InferRequest) -> str:
    """Return what prompts that begin alike have in common; "" for a request that has no prompt at hand.

    It is the client's `prompt_cache_key`, else the first 512 bytes. Clients of different salts share nothing.
    """
    found = {tensor.name: tensor for tensor in request.inputs if tensor.name in (*_PROMPTS, _SALT)}
    digest = blake2b(digest_size=16)
    if _SALT in found:
        digest.update(found[_SALT].data[:_BYTES])
    if key := request.parameters.get(_KEY):
        digest.update(str(key).encode(errors="replace"))
        return digest.hexdigest()
    begun = [bytes(found[name].data[4:_BYTES]) for name in _PROMPTS if name in found]
    if not any(begun):
        return ""
    for each in begun:
        digest.update(each)
    return digest.hexdigest()


def first_with_room(loads: Sequence[int]) -> int:
    """Return which replica gets a request: the first that has no more than its share of what is in flight.

    This is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2018): no replica has more
    than 1.25 times the mean, rounded up, and what it has no room for meets again at the next one.

    Args:
        loads: requests in flight at each replica, in the order in which they are tried; not empty.
    """
    room = ceil(_SLACK * (sum(loads) + 1) / len(loads))
    return next(place for place, load in enumerate(loads) if load < room)
