"""What a parser finds in a text."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple


class Content(NamedTuple):
    """Text that is no part of a call."""

    text: str


class Call(NamedTuple):
    """A call begins: its place among the text's calls, from 0, and the name of its function."""

    place: int
    name: str


class Arguments(NamedTuple):
    """The next piece of a call's arguments, as the model has written them."""

    place: int
    text: str


Event = Content | Call | Arguments


def merged(events: Iterable[Event]) -> Iterator[Event]:
    """Join pieces of one content, or of the arguments of one call, and leave out empty ones."""
    for _, group in groupby(events, lambda event: (type(event), *event[:-1])):
        first, *more = group
        if isinstance(first, Call):
            yield first
            yield from more
            continue
        text = first.text + "".join(event.text for event in more if not isinstance(event, Call))
        if text:
            yield first._replace(text=text)
