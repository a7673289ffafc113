"""The slots of Python classes into which C reaches by name. Whoever renames one does it here too, and in C:

    python -m app.native.slots > app/native/slot_names.h

`tests/unit/app/native/test_slots.py` names the C files that use a slot which its class no longer has.
"""

import textwrap
from typing import Final, NamedTuple

import msgspec

from app.core.tensors import InferRequest

_WIDTH: Final = 120


class Slots(NamedTuple):
    """The slots of a class, `owner` as `module:name`, that C uses, by names with the prefix in front."""

    prefix: str
    owner: str
    names: str

    def in_c(self) -> dict[str, str]:
        """Return what each slot is called in C."""
        return {name: f"{self.prefix}_{name.lstrip('_').upper()}" for name in self.names.split()}


SLOTS: Final = (
    Slots("T", "app.core.tensors:Tensor", "name datatype shape data"),
    Slots("W", "app.core.tensors:RequestedOutput", "name region classification binary"),
    Slots(
        *("Q", "app.core.tensors:InferRequest"),
        "model_name model_version inputs outputs id regions chain deadline trace",
    ),
    Slots(
        *("A", "app.core.tensors:InferResponse"),
        "model_name model_version outputs id parameters final failure",
    ),
    Slots(
        *("C", "app.ingress.http2.connection:Http2Connection"),
        "_reader _block _headers _output _streams _last_stream _received _draining _is_buffered",
    ),
    Slots("R", "app.protocol.grpc.http2:FrameReader", "_rest _missing _length _flags _stream"),
    Slots("M", "app.protocol.grpc.framing:MessageReader", "completed _buffer _allocated _filled _size"),
    Slots(
        *("O", "app.ingress.http2.stream:Output"),
        "frames window initial_window frame_size waiting drained keepalive streams corked on_idle _loop",
    ),
    Slots("K", "app.protocol.grpc.http2:Keepalive", "sent heard _second _counts"),
    Slots(
        *("S", "app.ingress.http2.stream:Stream"),
        "_output id receiver window received _credit ended over queue trailers _drained",
    ),
    Slots(
        *("U", "app.ingress.http2.call:UnaryCall"),
        "_state _stream _head _reader _buffered _headers_sent over _timer deadline _handler _message "
        "on_cancel",
    ),
    Slots("L", "app.transport.channel.client:ChannelCall", "channel _stream sink request_id bucket"),
    Slots(
        *("P", "deployments.execution.queued_request:QueuedRequest"),
        "infer answered detached rescheduled activity accepted failed sink rows shapes cancelled arrival_ns "
        "dispatch_ns nbytes computed _responses",
    ),
)

_FIELDS: Final = InferRequest.__struct_fields__
_PLAIN: Final = _FIELDS.index("id") + 1
"""Fields that each message of a request has; those behind are there where one is not at its default."""


def defaults() -> bytes:
    """Return what is behind the plain fields of a request at its defaults, before `regions`."""
    request = InferRequest("", "", ())
    rest = _FIELDS[_PLAIN : _FIELDS.index("regions")]
    return b"".join(msgspec.msgpack.encode(getattr(request, name)) for name in rest)


def header() -> str:
    """Return the text of `slot_names.h`."""
    rest = defaults()
    quoted = "".join(f"\\x{byte:02x}" for byte in rest)
    most = max(len(slots.in_c()) for slots in SLOTS)
    top = f"""\
/* Made by `python -m app.native.slots`. */
#pragma once

/* What is behind the id of a request whose `regions` or `chain` is set, and before these: the defaults. */
#define DEFAULTS "{quoted}"
enum {{ PLAIN_FIELDS = {_PLAIN}, ALL_FIELDS = {_FIELDS.index("deadline")} }};

/* Of each class: the places of its slots in what `find_slots` finds, and their names. */
enum {{ MOST_SLOTS = {most} }};
"""
    return top + "".join(map(_of_class, SLOTS))


def _of_class(slots: Slots) -> str:
    places = ", ".join([*slots.in_c().values(), f"{slots.prefix}_SLOTS"])
    names = ", ".join([*(f'"{name}"' for name in slots.in_c()), "NULL"])
    defined = _wrapped(f"#define {slots.prefix}_NAMES (const char *const[]){{{names}}}", " \\")
    return f"\n/* {slots.owner} */\n{_wrapped(f'enum {{ {places} }};')}\n{defined}\n"


def _wrapped(text: str, end: str = "") -> str:
    return f"{end}\n".join(textwrap.wrap(text, _WIDTH - len(end), subsequent_indent="    "))


if __name__ == "__main__":
    print(header(), end="")
