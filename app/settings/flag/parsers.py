"""Parsers of flags that have a grammar of their own; each raises ValueError in tritonserver's words."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from app.access.audit import append
from app.access.token_file import read_tokens
from app.core.installed.installation import install_command
from app.core.observability.metrics_config import MetricsConfig, parse_metrics_config
from app.core.observability.trace_settings import TraceSetting, parse_trace_config
from app.protocol.forwarding import HeaderForwarder

_PREFIX: Final = re.compile(r"(/[\w.~-]+)+", re.ASCII)
Named = dict[str, dict[str, str]]
"""Settings by the name in front of them, "" without one."""


def backend_config(entries: Iterable[str]) -> Named:
    """Parse `--backend-config`: settings by backend, "" for those of every backend."""
    return _named_settings(entries, _backend_config_error, named=False)


def host_policies(entries: Iterable[str]) -> Named:
    """Parse `--host-policy`: settings by the policy's name."""
    return _named_settings(entries, _form("--host-policy", "'<policy name>,<setting>=<value>'"), named=True)


def cache_config(entries: Iterable[str]) -> Named:
    """Parse `--cache-config`: the settings of the one response cache, by its name; empty without one."""
    error = _form("--cache-config", "'<cache name>,<setting>=<value>'")
    found: Named = {}
    for entry in entries:
        name, comma, rest = entry.partition(",")
        if not (name and comma and rest):
            raise ValueError(error(entry))
        found.setdefault(name, {}).update(_named_settings(rest.split(","), error, named=False)[""])
    _check_caches(found)
    return found


def metrics_config(entries: Iterable[str]) -> MetricsConfig:
    """Parse `--metrics-config`."""
    error = _form("--metrics-config", "<setting>=<value>")
    found = _named_settings(entries, error, named=False)
    for name, values in found.items():
        for key, value in values.items() if name else ():
            raise ValueError(error(f"{name},{key}={value}"))
    return parse_metrics_config(found.get("", {}))


def trace_config(entries: Iterable[str]) -> TraceSetting:
    """Parse `--trace-config`, with OpenTelemetry's variables of the environment."""
    setting = parse_trace_config(tuple(entries), os.environ)
    if setting.mode == "opentelemetry" and not _has_exporter():
        raise ValueError(
            "--trace-config mode=opentelemetry needs packages that are not installed: "
            + install_command("otel")
        )
    return setting


def config_name(text: str) -> str:
    """Parse `--model-config-name`."""
    if not text:
        raise ValueError("empty argument for --model-config-name")
    return text


def header_forwarder(flag: str) -> Callable[[str], HeaderForwarder | None]:
    """Return the parser of a flag that is a pattern of header names; empty forwards none."""

    def parse(pattern: str) -> HeaderForwarder | None:
        try:
            return HeaderForwarder(pattern) if pattern else None
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from None

    return parse


def gateway_paths(entries: Iterable[str]) -> tuple[str, ...]:
    """Parse `--http-path-prefix`: paths without a slash at the end, the longest first."""
    found = {entry.rstrip("/") for entry in entries}
    for prefix in found:
        if not _PREFIX.fullmatch(prefix) or prefix.split("/")[1] in ("v1", "v2"):
            raise ValueError(
                f"--http-path-prefix: '{prefix}' is no prefix, expected a path such as /api/predict/SERVICE "
                "of letters, digits and '-._~', which does not begin with /v1 or /v2"
            )
    return tuple(sorted(found, key=len, reverse=True))


def tokens_file(path: str) -> str:
    """Check the file of `--auth-tokens-file`."""
    return _usable("--auth-tokens-file", path, read_tokens)


def audit_log(path: str) -> str:
    """Check that the file of `--audit-log` can be written."""
    return _usable("--audit-log", path, partial(append, data=b""))


def absolute(path: str) -> str:
    """Return a path that is the same wherever a process runs; "" for none."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _usable(flag: str, path: str, use: Callable[[str], object]) -> str:
    try:
        if path:
            use(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{flag}: '{path}': {getattr(error, 'strerror', None) or error}") from None
    return os.path.abspath(path) if path else ""  # the server's processes run elsewhere


def entries_of_file(path: str, flag: str) -> list[str]:
    """Return the lines of a file without empty ones and comments, which begin with #."""
    try:
        lines = map(str.strip, Path(path).read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise ValueError(f"{flag}: cannot read '{path}': {reason}") from None
    return [line for line in lines if line and not line.startswith("#")]


def _named_settings(entries: Iterable[str], error: Callable[[str], str], named: bool) -> Named:
    """Split `[name,]key=value` entries; later ones win.

    Args:
        entries: the raw values.
        error: text for an entry of another form.
        named: whether the name is required.
    """
    found: Named = {}
    for entry in entries:
        head, equals, value = entry.partition("=")
        name, comma, key = head.partition(",")
        if not comma:
            name, key = "", head
        if not (equals and key and value) or ((named or comma) and not name):
            raise ValueError(error(entry))
        found.setdefault(name, {})[key] = value
    return found


def _form(flag: str, form: str) -> Callable[[str], str]:
    return lambda entry: f"{flag} option format is {form}. Got {entry}"


def _backend_config_error(entry: str) -> str:
    if entry.startswith(","):
        return (
            "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
            f"<setting>=<value>. Got {entry}"
        )
    return f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {entry}"


def _check_caches(caches: Mapping[str, Mapping[str, str]]) -> None:
    if len(caches) > 1:
        raise ValueError(
            "--cache-config: found multiple cache configurations, but only a single cache is currently"
            " supported"
        )
    for name, values in caches.items():
        if name not in ("local", "redis"):
            raise ValueError(f"--cache-config: unknown cache '{name}', expected 'local' or 'redis'")
        size = values.get("size", "")
        if name == "local" and (not size.isdecimal() or not int(size) or len(values) > 1):
            given = ",".join(f"{key}={value}" for key, value in values.items())
            raise ValueError(f"--cache-config=local: expected size=BYTES, got '{given}'")


def _has_exporter() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
