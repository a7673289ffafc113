"""The settings of what connects the server's processes."""

from typing import Annotated as A

import msgspec

from app.native import choice
from app.settings.flag.flags import Flag
from app.transport.settings import MIB, TransportSettings


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Ray and the channels between its processes."""

    channel_address: A[
        str,
        Flag(
            "channel_address",
            "Address for the channels between nodes; 'node' for each node's address in the cluster.",
        ),
    ] = "127.0.0.1"
    data_plane: A[
        str,
        Flag(
            "data_plane",
            "native: the data plane's compiled parts; python: none; auto: native where they are installed.",
            choices=choice.CHOICES,
        ),
    ] = "auto"
    arena_bytes: A[
        int, Flag("arena_bytes", "Shared memory for tensors on each channel; 0 sends them inline.", low=0)
    ] = 256 * MIB
    arena_threshold: A[
        int, Flag("arena_threshold", "Minimum bytes of a tensor sent through shared memory.", low=1)
    ] = 32 * 1024
    heartbeat_s: A[
        float,
        Flag(
            "channel_heartbeat_secs",
            "Seconds between pings of a replica; one that misses three is avoided, and its model not ready.",
            low=0.05,
        ),
    ] = 1.0
    replica_timeout_s: A[
        float,
        Flag(
            "replica_timeout_secs",
            "Seconds of silence after which the requests of a replica fail and it is replaced.",
            low=1,
        ),
    ] = 20.0
    busy_poll_us: A[
        int,
        Flag(
            "channel_busy_poll_us",
            "Microseconds to poll a channel for what is expected there before a process sleeps; 0 for none.",
            low=0,
        ),
    ] = 200
    fork_workers: A[
        bool, Flag("fork_workers", "Fork replicas from a process that has imported what they need.")
    ] = True
    allow_dashboard: A[bool, Flag("allow_dashboard", "Start Ray's dashboard, on this machine only.")] = False
    log_ray: A[
        bool, Flag("log_ray", "Print the messages of Ray and Serve, which otherwise go to a file.", bare=True)
    ] = False

    @property
    def transport(self) -> TransportSettings:
        """The limits of channels that these settings give."""
        return TransportSettings(
            data_plane=self.data_plane,
            arena_bytes=self.arena_bytes,
            arena_threshold=self.arena_threshold,
            heartbeat=self.heartbeat_s,
            peer_timeout=self.replica_timeout_s,
            busy_poll_us=self.busy_poll_us,
        )
