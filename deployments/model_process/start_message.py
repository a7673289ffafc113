"""What the process of a model is told first."""

import msgspec

from deployments.replica.replica import Place


class Start(msgspec.Struct, frozen=True):
    """The first message to the process.

    Attributes:
        spec: the serialised `ModelSpec`, whose files are on this node.
        place: where it is to listen.
        host: the address of the replica that has started it.
        host_pid: the process of that replica, whose memory counts as the model's.
        restarts: how often processes before it have ended unexpectedly.
    """

    spec: bytes
    place: Place
    host: str
    host_pid: int
    restarts: int
