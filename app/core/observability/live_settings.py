"""The settings that change while the server runs; the repository manager publishes them to every ingress."""

from typing import Any

import msgspec

from app.core.observability.log import LogConfig
from app.core.observability.trace_settings import TraceSettings
from app.core.tape.switch import TapeSwitch


class LiveSettings(msgspec.Struct, frozen=True):
    """The settings of every ingress."""

    log: LogConfig = LogConfig()
    trace: TraceSettings = TraceSettings()
    tape: TapeSwitch = TapeSwitch()

    def changed(self, change: "LiveChange") -> "LiveSettings":
        """Return these settings with one change applied.

        Raises:
            InferError: the change makes no sense; see `LogConfig.changed` and `TraceSettings.changed`.
        """
        trace = self.trace
        for model, values in change.trace.items():
            trace = trace.changed(model, values)
        tape = self.tape
        for model, values in change.tape.items():
            tape = tape.changed(model, values)
        return LiveSettings(self.log.changed(change.log), trace, tape)


class LiveChange(msgspec.Struct, frozen=True):
    """A change that a client requests: log settings by name, those of trace and tape by model and name."""

    log: dict[str, Any] = {}
    trace: dict[str, dict[str, Any]] = {}
    tape: dict[str, dict[str, Any]] = {}


def decode_live(data: bytes) -> LiveSettings:
    """Read settings written by `msgspec.msgpack.encode`."""
    return msgspec.msgpack.decode(data, type=LiveSettings)


def decode_change(data: bytes) -> LiveChange:
    """Read a change written by `msgspec.msgpack.encode`."""
    return msgspec.msgpack.decode(data, type=LiveChange)
