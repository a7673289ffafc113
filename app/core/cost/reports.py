"""What ingresses tell the manager of what was consumed in an interval, and what it answers."""

from typing import Final

import msgspec

from app.core.cost.amounts import Consumption

WORK: Final = "work"
"""The control verb by which an ingress reads the `ReplicaWork` of a replica."""


class CallUse(msgspec.Struct, array_like=True):
    """Requests to a version that were answered, of one client or of one model that calls it.

    Attributes:
        model, version: that has answered.
        client: name of the client's token; "" for nobody named.
        caller: the outermost model that these are calls of, where the client is not known.
        requests, rows: how many.
        weight: by which the version's cost is divided: rows, bytes or elements.
        bytes_in, bytes_out: of their tensors.
    """

    model: str
    version: int
    client: str = ""
    caller: str = ""
    requests: int = 0
    rows: int = 0
    weight: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0


class ReplicaWork(msgspec.Struct, array_like=True):
    """What a replica has done since it was loaded.

    Attributes:
        replica: identifies it.
        requests, rows: that it has answered.
        compute_s: seconds of its executions, each once.
        in_flight: requests that it has not answered.
        calls: of other models, since it was asked last.
    """

    replica: str
    requests: int = 0
    rows: int = 0
    compute_s: float = 0.0
    in_flight: int = 0
    calls: list[CallUse] = []


class VersionUse(msgspec.Struct, array_like=True):
    """What a version has consumed and done on a node.

    Attributes:
        model, version: its identifier and number.
        gpu: name of the kind of GPU; "" without.
        consumed: by its processes.
        requests, rows: that its replicas have answered.
        in_flight: that they have not; None where they were not asked, since they did nothing.
        calls: of other models.
    """

    model: str
    version: int
    gpu: str = ""
    consumed: Consumption = Consumption()
    requests: int = 0
    rows: int = 0
    in_flight: int | None = None
    calls: list[CallUse] = []


class NodeUse(msgspec.Struct, array_like=True):
    """What the processes of the server on one node have consumed.

    Attributes:
        node: its id.
        versions: of models.
        overhead: processes that are no model's, by what they are for.
        cpu_seconds: of all processes.
        core_seconds, gib_seconds: what the node has, times the time.
    """

    node: str
    versions: list[VersionUse] = []
    overhead: dict[str, Consumption] = {}
    cpu_seconds: float = 0.0
    core_seconds: float = 0.0
    gib_seconds: float = 0.0


class CostReport(msgspec.Struct, array_like=True):
    """One report of an ingress; `number` rises by one, so that none is added twice.

    Attributes:
        node: of the ingress.
        calls: of its clients; None where they have no tokens.
        use: of its node, if this ingress is the one that measures it.
        budgets: of the tokens that have one.
    """

    ingress: str
    number: int
    node: str
    calls: list[CallUse] | None = None
    use: NodeUse | None = None
    budgets: dict[str, str] = {}


class VersionCost(msgspec.Struct, frozen=True, array_like=True):
    """Processor seconds of a version since the manager's start: for requests, and without any."""

    model: str
    version: int
    usage_s: float
    idle_s: float


class VersionSaving(msgspec.Struct, frozen=True, array_like=True):
    """Share of processor time that a version saves beside the one before it, with its 95 % interval."""

    model: str
    version: int
    low: float
    value: float
    high: float


class CostAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures of the whole server since the manager's start.

    Attributes:
        versions: of models.
        clients: processor seconds by name of token.
        overhead: processor seconds by kind of process.
        measured_s: processor seconds of all processes.
        spent: of tokens whose budget is spent, the text of the refusal and the seconds until the next period.
        savings: of versions that have taken over by a rollout.
    """

    versions: tuple[VersionCost, ...] = ()
    clients: dict[str, float] = {}
    overhead: dict[str, float] = {}
    measured_s: float = 0.0
    spent: dict[str, tuple[str, float]] = {}
    savings: tuple[VersionSaving, ...] = ()
