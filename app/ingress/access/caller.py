"""The client of the request that is being answered: a context variable, which tasks inherit."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Protocol

from app.access.audit import Outcome
from app.access.grants import Grant
from app.core.errors import ErrorCode, InferError


class Record(Protocol):
    """Writes the line of an audited call."""

    def __call__(self, *, subject: str, outcome: Outcome, reason: str = "") -> None: ...


GRANT: ContextVar[Grant | None] = ContextVar("grant", default=None)
"""The client's token; None where tokens are not asked for."""
RECORD: ContextVar[Record | None] = ContextVar("record", default=None)
"""Set while an audited call is answered."""


def confined() -> str:
    """Return the name of the client's token, if that is for some models only; "" for other clients."""
    grant = GRANT.get()
    return "" if grant is None or grant.for_all else grant.name


def context_of(grant: Grant | None, record: Record | None = None) -> Context:
    """Return a context in which to answer a client."""
    context = copy_context()
    context.run(_enter, grant, record)
    return context


def _enter(grant: Grant | None, record: Record | None) -> None:
    GRANT.set(grant)
    RECORD.set(record)


class Audited:
    """A call that is recorded; its subject may become known while it is answered."""

    def __init__(self, subject: str) -> None:
        self.subject = subject


@contextmanager
def recorded(subject: str) -> Iterator[Audited]:
    """Write the line of the call that is made in this block, if it is audited."""
    record, call = RECORD.get(), Audited(subject)
    if record is None:
        yield call
        return
    try:
        yield call
    except asyncio.CancelledError:
        record(subject=call.subject, outcome="cancelled")
        raise
    except Exception as error:
        denied = isinstance(error, InferError) and error.code is ErrorCode.PERMISSION_DENIED
        outcome: Outcome = "denied" if denied else "failed"
        record(subject=call.subject, outcome=outcome, reason=str(error) or type(error).__name__)
        raise
    record(subject=call.subject, outcome="ok")
