"""Description of an instance of a built-in backend in plain values, for the process that executes it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class HostedInstance:
    """One instance of a model, or the model alone for the completion of its configuration.

    Attributes:
        model_name: the model.
        version: its version.
        directory: the model's directory, absolute.
        backend: the backend's name.
        place: its class, as `module:class`.
        frameworks: titles of the modules that it needs, by their names.
        requirements: the file of the packages that an environment of its own has.
        settings: `--backend-config` of the backend.
        config: the serialised configuration, in base64.
        schema: the serialised descriptor of configurations, in base64.
        name, kind, device_id, index, passive, profiles, secondary_devices, host_policy: see `Instance`.
        decoupled: whether a request has any number of responses.
    """

    model_name: str
    version: int
    directory: str
    backend: str
    place: str
    frameworks: dict[str, str]
    requirements: str
    settings: dict[str, str]
    config: str
    schema: str
    name: str
    kind: str = "CPU"
    device_id: int = 0
    index: int = 0
    passive: bool = False
    profiles: list[str] = field(default_factory=list)
    secondary_devices: list[tuple[str, int]] = field(default_factory=list)
    host_policy: dict[str, str] = field(default_factory=dict)
    decoupled: bool = False
