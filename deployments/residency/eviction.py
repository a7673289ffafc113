"""Chooses the models to evict: pure functions of what is in memory."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec


class Resident(msgspec.Struct, frozen=True):
    """A model in memory.

    Attributes:
        name: its identifier.
        nbytes: memory of all its replicas.
        used_at: when it was used last, in seconds of any clock.
        kept: why it cannot be evicted now; "" if it can.
    """

    name: str
    nbytes: int
    used_at: float
    kept: str = ""


class Eviction(NamedTuple):
    """The models to evict, oldest use first; `missing` bytes remain when none else can be."""

    names: tuple[str, ...]
    missing: int = 0


def plan_evictions(residents: Iterable[Resident], excess: int) -> Eviction:
    """Choose models whose eviction frees at least `excess` bytes: the least recently used ones.

    None is evicted without need: one that the later ones make superfluous stays.
    """
    if excess <= 0:
        return Eviction(())
    chosen: list[Resident] = []
    freed = 0
    for model in sorted(residents, key=lambda model: model.used_at):
        if freed >= excess:
            break
        if not model.kept and model.nbytes > 0:
            chosen.append(model)
            freed += model.nbytes
    if freed < excess:
        return Eviction((), excess - freed)
    for model in chosen[::-1]:  # those used last stay if they can
        if freed - model.nbytes >= excess:
            chosen.remove(model)
            freed -= model.nbytes
    return Eviction(tuple(model.name for model in chosen))


def together(residents: Collection[Resident], ensembles: Iterable[Collection[str]]) -> list[Resident]:
    """Treat the models of an ensemble as one: they were used when any of them was, and are kept like it.

    Args:
        residents: the models in memory.
        ensembles: the models that each ensemble calls; one that lacks some is not in memory itself.
    """
    found = {model.name: model for model in residents}
    for names in ensembles:
        if not all(name in found for name in names):
            continue
        steps = [found[name] for name in names]
        used_at = max((step.used_at for step in steps), default=0.0)
        kept = next((step.kept for step in steps if step.kept), "")
        for step in steps:
            found[step.name] = msgspec.structs.replace(step, used_at=used_at, kept=step.kept or kept)
    return list(found.values())
