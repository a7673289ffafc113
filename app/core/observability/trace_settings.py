"""The settings of tracing: Triton's trace extension and `--trace-config`."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from app.core.errors import invalid_arg
from app.core.hints import did_you_mean

OFF: Final = "OFF"
LEVELS: Final = ("TIMESTAMPS", "TENSORS")
MODES: Final = ("triton", "opentelemetry")
GLOBAL: Final = ""
"""The scope of the settings for every model that has none of its own."""

_OPTIONS: Final[Mapping[str, str]] = {
    "bsp_max_export_batch_size": "512",
    "bsp_max_queue_size": "2048",
    "bsp_schedule_delay": "5000",
    "resource": "",
    "url": "",
}


class TraceSetting(msgspec.Struct, frozen=True):
    """Complete settings of tracing.

    Attributes:
        level: of `LEVELS`; empty when nothing is traced.
        rate: one of so many requests is traced.
        count: how many more are traced; -1 for no limit.
        log_frequency: traces per file (`<file>.0`, `<file>.1`, ...); 0 for one file.
        file: the file of traces in mode `triton`.
        mode: of `MODES`.
        options: of mode `opentelemetry`.
    """

    level: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    mode: str = "triton"
    options: dict[str, str] = {}

    def check(self) -> None:
        """Refuse settings that enable tracing but cannot produce a trace.

        Raises:
            InferError: INVALID_ARG.
        """
        if not self.level or self.mode != "triton":
            return
        reason = "trace file name is not given" if not self.file else ""
        if not self.rate:
            reason = "sample rate must be non-zero"
        if reason:
            raise invalid_arg(f"Attempting to set invalid trace setting :{reason}")

    @property
    def traces(self) -> bool:
        """Whether any request may be traced."""
        return bool(self.level) and (self.mode == "opentelemetry" or bool(self.rate and self.file))


Change = Mapping[str, Any]
"""New values of `level`, `rate`, `count` or `log_frequency`; None clears one, absent ones stay."""


class TraceSettings(msgspec.Struct, frozen=True):
    """The settings a server started with, and the changes since by model; `GLOBAL` is for all."""

    startup: TraceSetting = TraceSetting()
    overrides: dict[str, dict[str, Any]] = {}

    def for_model(self, model: str = GLOBAL) -> TraceSetting:
        """Return the settings of a model: its own values, else the global ones, else those of the start."""
        changes = {**self.overrides.get(GLOBAL, {}), **self.overrides.get(model, {})}
        if "level" in changes:
            changes["level"] = tuple(changes["level"])  # a list once it was decoded
        return msgspec.structs.replace(self.startup, **changes) if changes else self.startup

    def changed(self, model: str, change: Change) -> "TraceSettings":
        """Return these settings with a change to one model or to `GLOBAL`.

        Raises:
            InferError: INVALID_ARG; see `TraceSetting.check`.
        """
        mine = {**self.overrides.get(model, {}), **change}
        mine = {key: value for key, value in mine.items() if value is not None}
        overrides = {**self.overrides, model: mine}
        changed = TraceSettings(self.startup, {name: own for name, own in overrides.items() if own})
        if change:
            changed.for_model(model).check()
        return changed


_SETTINGS: Final = ("file", "mode", "level", "rate", "count", "log-frequency")


def parse_trace_config(entries: Iterable[str], environment: Mapping[str, str] | None = None) -> TraceSetting:
    """Read the values of `--trace-config`, `[MODE,]KEY=VALUE` each; later ones win, levels add up.

    Args:
        environment: has OpenTelemetry's variables of the batch span processor, such as
            `OTEL_BSP_MAX_QUEUE_SIZE`, which count where no entry sets them.

    Raises:
        ValueError: an invalid entry or variable, described in one line.
    """
    found: dict[str, Any] = {}
    inherited = _inherited(environment or {})
    options = {**_OPTIONS, **inherited}
    for entry in entries:
        head, equals, value = entry.partition("=")
        mode, comma, key = head.partition(",")
        mode, key = (mode, key) if comma else ("", head)
        if not equals or not key or (comma and mode not in MODES):
            raise ValueError(f"--trace-config option format is '<mode>,<setting>=<value>'. Got {entry}")
        if mode == "opentelemetry":
            _add_option(options, key, value, entry)
        else:
            _add_setting(found, key, value, entry)
    telemetry = found.get("mode") == "opentelemetry"
    for key, value in inherited.items():
        if telemetry and options[key] == value:
            whole_number(value, 1, partial(_no_integer, _variable(key), value))
    kept = {key: value for key, value in options.items() if value} if telemetry else {}
    return TraceSetting(**found, options=kept)


def _add_setting(found: dict[str, Any], key: str, value: str, entry: str) -> None:
    name = key.replace("-", "_")
    if name == "file":
        found["file"] = value
    elif name == "mode":
        if value.lower() not in MODES:
            raise ValueError(f"--trace-config: unknown mode '{value}'; expected one of {', '.join(MODES)}")
        found["mode"] = value.lower()
    elif name == "level":
        found["level"] = _level(found.get("level", ()), value)
    elif name in ("rate", "count", "log_frequency"):
        found[name] = whole_number(value, -1 if name == "count" else 0, _not_in(entry))
    else:
        raise _unknown(key, entry, _SETTINGS)


def _add_option(options: dict[str, str], key: str, value: str, entry: str) -> None:
    if key not in options:
        raise _unknown(key, entry, options)
    if key.startswith("bsp_"):
        whole_number(value, 0 if key == "bsp_schedule_delay" else 1, _not_in(entry))
    options[key] = f"{options[key]},{value}" if key == "resource" and options[key] else value


def _unknown(key: str, entry: str, known: Iterable[str]) -> ValueError:
    near = did_you_mean(key, known)
    keys = f"the settings are {', '.join(known)}"
    return ValueError(f"--trace-config: unknown setting in '{entry}'; {near or keys}")


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    keys = (key for key in _OPTIONS if key.startswith("bsp_"))
    return {key: value for key in keys if (value := environment.get(_variable(key)))}


def _variable(key: str) -> str:
    return f"OTEL_{key.upper()}"


def _level(before: tuple[str, ...], value: str) -> tuple[str, ...]:
    name = value.upper()
    if name in ("MIN", "MAX"):  # Triton's old names of it
        name = LEVELS[0]
    if name == OFF:
        return ()
    if name not in LEVELS:
        raise ValueError(f"--trace-config: unknown level '{value}'; expected OFF, TIMESTAMPS or TENSORS")
    return tuple(level for level in LEVELS if level in (*before, name))


def _not_in(entry: str) -> Callable[[], Exception]:
    option, _, value = entry.partition("=")
    return partial(_no_integer, f"--trace-config {option}", value)


def _no_integer(option: str, value: str) -> ValueError:
    return ValueError(f"Bad option: \"{option}\": expected an integer, got '{value}'")


def whole_number(text: str, low: int, error: Callable[[], Exception]) -> int:
    """Read an integer of 32 bits that is at least `low`, or raise what `error` makes."""
    try:
        number = int(text)
    except ValueError:
        raise error() from None
    if not low <= number < 1 << 31:
        raise error()
    return number
