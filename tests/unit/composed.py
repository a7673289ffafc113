"""Stands for a router: what answers the requests of all versions of a table is one object of a test."""

from collections.abc import Sequence

from app.core.inference import Call, Sink, Target
from app.core.tensors import InferRequest
from app.routing.refusals import not_ready
from app.routing.table import RoutingTable, VersionEntry


class Composed:
    """Has the requests of every version of `table` given to its own `submit(entry, request, sink)`."""

    _table = RoutingTable()

    @property
    def table(self) -> RoutingTable:
        return self._table

    @table.setter
    def table(self, table: RoutingTable) -> None:
        table.compose_by(self)
        self._table = table

    def compose(self, found: VersionEntry) -> Target:
        return Handed(self, found)

    def tapped(self, found: VersionEntry) -> Target:
        return found.route

    def available(self, found: VersionEntry) -> bool:
        return True

    def submit(self, found: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        raise NotImplementedError

    def otherwise(self, found: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        current = self.table.resolve(request.model_name, request.model_version)
        if current.decoupled != found.decoupled:
            raise not_ready(found.model, found.version)
        return current.route.submit(request, sink)

    def send_in_sequence(self, entries: Sequence[VersionEntry], request: InferRequest, sink: Sink) -> Call:
        return entries[0].route.submit(request, sink)


class Handed:
    """Gives requests of a version to the object of the test."""

    def __init__(self, to: Composed, entry: VersionEntry) -> None:
        self._to = to
        self._entry = entry

    @property
    def available(self) -> bool:
        return self._to.available(self._entry)

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        return self._to.submit(self._entry, request, sink)
