"""Limits and thresholds of the data plane."""

import msgspec

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class TransportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a connection. Each end uses its own; only the arena sizes are sent to the peer.

    Sizes are bytes, durations seconds.
    """

    data_plane: str = "auto"
    """One of `app.native.choice.CHOICES`; see `is_native` there."""
    arena_bytes: int = 256 * MIB
    """Shared memory for tensors that this end sends, per connection; 0 sends everything inline."""
    arena_threshold: int = 32 * KIB
    """Tensors of at least this size travel through the arena."""
    arena_trim_after: float = 10.0
    """An arena unused for this long returns its memory to the kernel."""
    max_arena_bytes: int = 64 * GIB
    """The largest arena of a peer that this end maps."""
    max_frame_bytes: int = 2 * GIB + 64 * MIB
    max_meta_bytes: int = 16 * MIB
    """Names, shapes, parameters and control payloads of one frame."""
    read_buffer_bytes: int = 256 * KIB
    """Frames up to this size are parsed in place, in one buffer per connection."""
    max_buffered_bytes: int = 256 * MIB
    """Send buffer. Beyond it a client refuses requests, and a server closes the connection."""
    write_high_water: int = 1 * MIB
    """Beyond this many bytes in the send buffer a server stops reading requests from the connection."""
    max_streams: int = 65536
    """Requests in flight on one connection; beyond it a server answers UNAVAILABLE."""
    max_connections: int = 4096
    max_handshakes: int = 64
    """Connections in their handshake; more wait in the listen queue."""
    connect_timeout: float = 5.0
    handshake_timeout: float = 5.0
    control_timeout: float = 10.0
    max_controls: int = 64
    """Control verbs running at once on one connection."""
    deadline_grace: float = 0.05
    """How long after a request's deadline the client waits for the replica's own response."""
    peer_timeout: float = 20.0
    """Requests fail when their peer has been silent for about this long, though its process runs."""
    heartbeat: float = 1.0
    """Time between two pings of a client; a server that misses three is suspected, and avoided."""
    busy_poll_us: int = 200
    """How long an end polls for what its peer sends next, before it sleeps (`loops/busy_poll.py`)."""
