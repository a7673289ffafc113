"""Settings of models that are loaded by their first request, and of the requests that wait for them."""

from typing import Annotated as A

import msgspec

from app.settings.flag.flags import Flag


class ResidencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Models on demand, and requests that wait for a replica."""

    memory_bytes: A[
        int,
        Flag(
            "model_memory_bytes",
            "Maximum bytes of memory, that of GPUs included, of all models together; each is loaded by its "
            "first request, and unloaded when others need its place. 0 to load all at startup and keep them.",
            low=0,
        ),
    ] = 0
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
