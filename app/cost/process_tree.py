"""The processes of a server on this machine, with what they have used and what they are for."""

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from app.core.system.processes import arguments, stat_fields
from app.cost.roles import OWN, SERVER, Role, role_of
from app.cost.samples import Key, ProcessSample

_PARENT: Final = 2
_USER: Final = 12
"""The place among `stat_fields` of the user time; that in the kernel and both of ended children follow."""
_STARTED: Final = 20


class _Known(NamedTuple):
    """A process of the server, as it was seen."""

    started: int
    role: Role


class ProcessTree:
    """A process and all below it. A look costs some 20 us for each of them, and for each that is new.

    Args:
        root: the id of the process.
        kind: what it is for, if its title does not say it.
    """

    def __init__(self, root: int, kind: str = SERVER) -> None:
        self._root, self._kind = root, kind
        self._known: dict[int, _Known] = {}
        self._foreign: set[int] = set()

    def look(self) -> dict[Key, ProcessSample]:
        """Return the processes of now. Blocks."""
        pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._foreign &= pids
        fields = {pid: found for pid in pids - self._foreign if (found := stat_fields(pid))}
        started = {pid: int(found[_STARTED]) for pid, found in fields.items()}
        self._known = {pid: each for pid, each in self._known.items() if started.get(pid) == each.started}
        parents = {pid: int(found[_PARENT]) for pid, found in fields.items()}
        self._find(parents, started)
        self._foreign |= fields.keys() - self._known.keys()
        return dict(self._samples(fields, parents))

    def _find(self, parents: dict[int, int], started: dict[int, int]) -> None:
        """Learn of new processes, and what those are for that may have been given something to do."""
        for pid, known in list(self._known.items()):
            if not known.role.settled:
                self._known[pid] = known._replace(role=self._role(pid, parents[pid], known.role))
        new = parents.keys() - self._known.keys()
        while found := [pid for pid in new if pid == self._root or parents[pid] in self._known]:
            for pid in found:
                self._known[pid] = _Known(started[pid], self._role(pid, parents[pid], None))
            new -= set(found)

    def _role(self, pid: int, parent: int, before: Role | None) -> Role:
        above, title = self._known.get(parent), " ".join(arguments(pid))
        inherited = Role(kind=self._kind) if above is None else above.role
        # What a model starts is the model's, but for the server that forks models, which the first starts.
        if inherited.application and not title.startswith(OWN):
            return inherited
        return role_of(title) or before or inherited

    def _samples(
        self, fields: dict[int, list[str]], parents: dict[int, int]
    ) -> Iterator[tuple[Key, ProcessSample]]:
        for pid, known in self._known.items():
            user, system, user_ended, system_ended = map(int, fields[pid][_USER : _USER + 4])
            ended = user_ended + system_ended
            sample = ProcessSample(parents[pid], user + system, ended, known.role.group)
            yield (pid, known.started), sample
