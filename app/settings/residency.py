"""Settings of requests that wait for a replica of their model."""

from typing import Annotated as A

import msgspec

from app.settings.flags import Flag


class ResidencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that wait for a replica."""

    waiting_requests: A[
        int,
        Flag(
            "max_waiting_requests",
            "Maximum requests that wait for models to load, per ingress replica.",
            low=1,
        ),
    ] = 1024
    waiting_bytes: A[
        int,
        Flag("max_waiting_bytes", "Maximum bytes of those requests, per ingress replica.", low=1),
    ] = 256 << 20
    waiting_s: A[
        float,
        Flag(
            "max_waiting_secs",
            "Seconds that a request without a deadline waits for its model to load.",
            low=0.1,
        ),
    ] = 120
