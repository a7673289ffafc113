"""One control call to many peers at once."""

import asyncio
import logging
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from app.core.errors import InferError
from app.transport.channel.client import Channel

T = TypeVar("T")

logger = logging.getLogger(__name__)


async def ask(
    channels: Iterable[Channel], verb: str, kind: type[T], timeout_s: float
) -> list[tuple[Channel, T]]:
    """Return the answers, each with its channel.

    A peer that is suspected, fails or does not answer in time is left out.
    """
    asked = [channel for channel in channels if not channel.suspected]
    answers = await asyncio.gather(
        *(channel.control(verb, None, timeout_s) for channel in asked), return_exceptions=True
    )
    given = []
    for channel, answer in zip(asked, answers, strict=True):
        if isinstance(answer, (InferError, OSError, TimeoutError)):
            logger.debug("no %s from a replica: %s", verb, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            given.append((channel, msgspec.convert(answer, kind)))
    return given
