"""Seeds that went wrong: cut, repeated, joined with others, with other bytes and numbers in places."""

import random
from collections.abc import Sequence

NUMBERS = (b"-1", b"0", b"9223372036854775808", b"1e999", b"NaN", b"null", b"\xff\xff\xff\xff", b"\x80" * 10)


def mutate(seed: bytes, chance: random.Random) -> bytes:
    """Return a seed with one to four changes."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        start = chance.randint(0, len(data))
        stop = min(len(data), start + chance.choice((0, 1, 4, 30)))
        data[start:stop] = chance.choice(
            (b"", chance.randbytes(2), chance.choice(NUMBERS), data[: chance.randint(0, 40)])
        )
    return bytes(data)


def splice(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Return the beginning of a seed with the end of one, or now and then a seed as it is."""
    front, end = chance.choice(seeds), chance.choice(seeds)
    if chance.randrange(4):
        return front
    return front[: chance.randint(0, len(front))] + end[chance.randint(0, len(end)) :]
