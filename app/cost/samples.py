"""Processor time of a server's processes by what they are for, from one look at them to the next. Pure.

The kernel adds the time of a process that has ended to its parent's sum of ended children. So the sum over
all processes never falls, but a parent's part of it jumps. Here the jump goes to whom it belongs: what was
seen of the ended process was counted already, and the rest is its own kind's.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

Key = tuple[int, int]
"""Process id and time of start."""


class ProcessSample(NamedTuple):
    """What a process has used since its start, in the kernel's ticks.

    Attributes:
        parent: the id of its parent.
        own: in user mode and in the kernel.
        ended: of its children that have ended, and theirs.
        group: what it is for.
    """

    parent: int
    own: int
    ended: int
    group: str


class ProcessMeter:
    """Says what each group has used since the last look. The first look is where it begins."""

    def __init__(self) -> None:
        self._before: Mapping[Key, ProcessSample] | None = None

    def take(self, samples: Mapping[Key, ProcessSample]) -> dict[str, int]:
        """Return the ticks of each group since the last look; {} for the first."""
        before, self._before = self._before, samples
        if before is None:
            return {}
        used = defaultdict[str, int](int)
        ended = _ended(before, samples)
        rests: dict[Key, int] = {}
        for key, sample in samples.items():
            old = before.get(key)
            used[sample.group] += sample.own - (old.own if old else 0)
            children = ended.get(key[0], [])
            rests[key] = sample.ended - (old.ended if old else 0) - sum(map(_all, children))
        for key in [key for key, rest in rests.items() if rest < 0]:
            _move(rests, key, ended[key[0]])
        for key, rest in rests.items():
            # A parent that ignores its children's ends is not told of their time: then there is no rest.
            if rest > 0:
                children = ended.get(key[0], [])
                used[children[0].group if children else samples[key].group] += rest
        return {group: ticks for group, ticks in used.items() if ticks > 0}


def _all(sample: ProcessSample) -> int:
    return sample.own + sample.ended


def _move(rests: dict[Key, int], key: Key, children: list[ProcessSample]) -> None:
    """Take processes from the parent that did not get their time to one that has got so much.

    A process whose parent was killed before it belongs to a new one, which is not always the parent's parent.
    """
    for child in sorted(children, key=_all, reverse=True):
        other = max(rests, key=rests.__getitem__)
        if rests[other] >= _all(child) > 0 and rests[key] < 0:
            rests[other] -= _all(child)
            rests[key] += _all(child)


def _ended(
    before: Mapping[Key, ProcessSample], now: Mapping[Key, ProcessSample]
) -> dict[int, list[ProcessSample]]:
    """Return the processes that have ended, by the id of the one that has got their time."""
    alive = {pid for pid, _ in now}
    parents = {pid: sample.parent for (pid, _), sample in before.items()}
    found = defaultdict[int, list[ProcessSample]](list)
    for key, sample in before.items():
        if key not in now:
            reaper = sample.parent
            while reaper not in alive and reaper in parents:
                reaper = parents[reaper]
            found[reaper].append(sample)
    return found
