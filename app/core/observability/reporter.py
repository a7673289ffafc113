"""Reports to the repository manager, again and again, what a process has counted."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import ClassVar, Final, Generic, TypeVar

from app.core.errors import InferError

logger = logging.getLogger(__name__)

R = TypeVar("R")
A = TypeVar("A")

pause: Final = asyncio.sleep

_LEAST_S: Final = 0.2
"""From one report to one that is hurried: what hurries may come many times a second."""
_INGRESSES: Final = 4096
"""Ingresses whose last report is remembered."""


class Reporter(ABC, Generic[R, A]):
    """Collects a report, sends it, and hears the answer; then waits, or is hurried.

    A report that did not arrive is sent again as it was: one that has its number is added once at the other
    end. What is counted meanwhile goes into the next one, so that nothing piles up while the manager is away.

    Args:
        what: what is reported, for the log.
        send: sends a report; returns the manager's answer.
        period_s: seconds from one report to the next.

    Attributes:
        repeats: whether a report is sent again; one of the moment, with gauges alone, is collected anew.
    """

    repeats: ClassVar[bool] = True

    def __init__(self, what: str, send: Callable[[R], Awaitable[A]], period_s: float = 1.0) -> None:
        self._what, self._send, self._period_s = what, send, period_s
        self._hurried = asyncio.Event()
        self._number = 0
        self._sending: R | None = None

    @abstractmethod
    async def collect(self, number: int) -> R | None:
        """Return the next report; None while there is nothing to tell.

        Args:
            number: of the report. It rises by one, and none is used twice.
        """

    @abstractmethod
    def heard(self, report: R, answer: A) -> None:
        """Take the manager's answer to a report, which has arrived."""

    async def run(self) -> None:
        """Report for ever."""
        while True:
            try:
                await self.report()
            except InferError as error:
                logger.debug("%s: reported again: %s", self._what, error.message)
            except Exception:
                logger.exception("reporting %s", self._what)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._hurried.wait()
                    await pause(_LEAST_S)
            self._hurried.clear()

    def hurry(self) -> None:
        """Report soon."""
        self._hurried.set()

    async def report(self) -> None:
        """Send what was counted, or the last report if it has not arrived.

        Raises:
            InferError: the manager has not received it.
        """
        if self._sending is None or not self.repeats:
            self._sending = await self.collect(self._number + 1)
            if self._sending is None:
                return
            self._number += 1
        sent = self._sending
        answer = await self._send(sent)
        self._sending = None
        self.heard(sent, answer)


class ReportNumbers:
    """Tells at the other end which reports are new.

    Attributes:
        last: the number of each ingress's last report.
    """

    def __init__(self, last: Mapping[str, int] | None = None) -> None:
        self.last = dict(last or {})

    def add(self, ingress: str, number: int) -> bool:
        """Note a report; return whether it is new, and no repetition of what has arrived."""
        if number <= self.last.get(ingress, 0):
            return False
        self.last.pop(ingress, None)  # the order of the dictionary is that of the reports
        self.last[ingress] = number
        if len(self.last) > _INGRESSES:
            del self.last[next(iter(self.last))]
        return True
