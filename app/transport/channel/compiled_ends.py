"""The compiled ends of a connection, for connections that use them (`app/native/ends.h`)."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from app.core.inference import Cancel, Sink
from app.transport.channel.connection import Connection
from app.transport.channel.deadlines import Deadlines

if TYPE_CHECKING:
    from app.native.extension import ClientEnd, ServerEnd


def client_end(
    channel: Connection,
    loop: asyncio.AbstractEventLoop,
    calls: dict[int, Any],
    deadlines: Deadlines,
    call: type,
    no_sink: Sink,
) -> "ClientEnd | None":
    """Return what handles most small messages of a channel; None where Python does all."""
    if channel.encoder.compiled is None:
        return None
    from app.native.extension import ClientEnd

    return ClientEnd(
        channel.encoder.compiled,
        channel,
        calls,
        partial(loop.call_soon, channel._flush),
        deadlines,
        call,
        no_sink,
        limit=channel.settings.max_buffered_bytes,
        max_frame=channel.settings.max_frame_bytes,
    )


def server_end(
    connection: Connection,
    loop: asyncio.AbstractEventLoop,
    streams: dict[int, Cancel],
    handler: object,
    nothing: Cancel,
) -> "ServerEnd | None":
    """Return what handles most small messages of a server's connection; None where Python does all."""
    if connection.encoder.compiled is None:
        return None
    from app.native.extension import ServerEnd

    return ServerEnd(
        connection.encoder.compiled,
        connection,
        streams,
        partial(loop.call_soon, connection._flush),
        handler,
        nothing,
        limit=connection.settings.write_high_water,
        max_frame=connection.settings.max_frame_bytes,
        max_streams=connection.settings.max_streams,
    )
