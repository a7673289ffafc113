"""Deprecated flags of tritonserver and their replacements."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from app.settings.flag.errors import SettingsError
from app.settings.flag.flags import Label, Setting

DEPRECATED: Final[Mapping[str, Callable[[str], tuple[str, str]]]] = {
    "model_store": lambda value: ("model_repository", value),
    "response_cache_byte_size": lambda value: ("cache_config", f"local,size={value}"),
    "trace_file": lambda value: ("trace_config", f"triton,file={value}"),
    "trace_level": lambda value: ("trace_config", f"level={value}"),
    "trace_rate": lambda value: ("trace_config", f"rate={value}"),
    "trace_count": lambda value: ("trace_config", f"count={value}"),
    "trace_log_frequency": lambda value: ("trace_config", f"triton,log-frequency={value}"),
}
"""Deprecated names: each returns the name and the value that replace it."""

STRICT_MODEL_CONFIG: Final = "strict_model_config"
"""The deprecated opposite of `disable_auto_complete_config`, which has precedence."""


def replace_deprecated(
    given: dict[str, Any], settings: Mapping[str, Setting], label: Label, warnings: list[str]
) -> None:
    """Replace deprecated names in `given`; entries under the new name follow and have precedence.

    Raises:
        SettingsError: a name and its replacement that exclude each other.
    """
    for name in [name for name in given if name in DEPRECATED]:
        old = given.pop(name)
        if name == "response_cache_byte_size" and "cache_config" in given:
            raise SettingsError(
                f"Error: Incompatible flags {label(name)} and {label('cache_config')} both provided. "
                "Please provide one or the other."
            )
        renamed = [DEPRECATED[name](str(value)) for value in _listed(old)]
        for modern, text in renamed:
            if name != "model_store":
                warnings.append(f"warning: {label(name)} is deprecated, use {label(modern)}={text}")
        if renamed:
            modern = renamed[0][0]
            given[modern] = [*(text for _, text in renamed), *_listed(given.get(modern, []))]
    if STRICT_MODEL_CONFIG in given:
        warnings.append(
            "Warning: '--strict-model-config' has been deprecated! "
            "Please use '--disable-auto-complete-config' instead."
        )
        probe = settings["disable_auto_complete_config"]
        strict = probe.read(given.pop(STRICT_MODEL_CONFIG), label(STRICT_MODEL_CONFIG))
        if not strict and probe.read(given.get(probe.name, False), label(probe.name)):
            warnings.append(
                "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
                "'--disable-auto-complete-config'!"
            )
        given.setdefault(probe.name, strict)


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
