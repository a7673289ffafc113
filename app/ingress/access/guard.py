"""Access control of a front: asks the tokens in force, and writes to the audit log."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from app.access.audit import Audit
from app.access.grants import Grant, Grants, Need
from app.access.tokens import ANONYMOUS
from app.core.errors import Failure
from app.ingress.access.caller import Record


class Ask(NamedTuple):
    """The rights that a request needs, as far as its route or RPC tells.

    Attributes:
        need: what it needs the right to.
        model: the model that it names, as far as that is known; "" for the whole server.
        region: the memory region that it names.
        action: what the audit calls it; "" for a request that changes nothing.
        open: nobody needs a token for it.
        whole: if it names no model, a token for some models only does not suffice.
    """

    need: Need
    model: str = ""
    region: str = ""
    action: str = ""
    open: bool = False
    whole: bool = False


METRICS: Final = Ask("metrics", whole=True)
"""What a request for the metrics asks for, whose families have all models and tokens."""


class Guard:
    """Decides who may do what, and keeps a record of it.

    Args:
        grants: the tokens in force; None if none are asked for.
        audit: where management calls are recorded; None for nowhere.
    """

    def __init__(self, grants: Grants | None, audit: Audit | None) -> None:
        self.grants = grants
        self._audit = audit

    def concerns(self, ask: Ask) -> bool:
        """Return whether there is anything to decide about a request, or to record."""
        return not ask.open and (self.grants is not None or (self._audit is not None and bool(ask.action)))

    def admit(self, authorization: str, ask: Ask) -> tuple[Grant | None, Failure | None]:
        """Return the token of a request, and why the request may not go on; None if it may."""
        if self.grants is None:
            return None, None
        grant = self.grants.find(authorization)
        return grant, self.grants.refusal(grant, ask.need, ask.model, ask.whole)

    def refused(self, ask: Ask, grant: Grant | None, refusal: Failure, record: Record | None) -> None:
        """Count and record a refusal."""
        if self.grants is not None:
            self.grants.denied(grant)
        if record is not None:
            record(subject=ask.model or ask.region, outcome="denied", reason=refusal.message)

    def record(self, ask: Ask, grant: Grant | None, protocol: str, peer: Callable[[], str]) -> Record | None:
        """Return what writes the audit's line of a request; None for one without."""
        if self._audit is None or not ask.action:
            return None
        who = ANONYMOUS if grant is None else grant.name
        return partial(self._audit.write, protocol=protocol, who=who, peer=peer(), action=ask.action)
