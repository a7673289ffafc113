"""Settings of the fronts for SageMaker and Vertex AI: flags, and what these platforms say by environment."""

import os
from collections.abc import Collection, Mapping
from typing import Annotated as A
from typing import Any, Final

import msgspec

from app.settings.flag.flags import Flag
from app.settings.fronts import HttpSettings

_PING_MODES: Final = ("ready", "live")
_INFERENCE_TYPES: Final = ("infer", "generate", "generate_stream")
_NO_MODEL: Final = "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
"""As in tritonserver, whose answer to a request then is that it does not know this model."""


class CloudSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The two fronts; they listen at the address of HTTP.

    Attributes:
        sagemaker_ping: what `/ping` asks, "ready" or "live".
        sagemaker_model: the model of `/invocations`.
        sagemaker_type: what `/invocations` is: infer, generate or generate_stream.
        vertex_ai_predict: path of predictions.
        vertex_ai_health: path of health checks.
    """

    allow_sagemaker: A[
        bool, Flag("allow_sagemaker", "Serve SageMaker's protocol, at the address of HTTP.")
    ] = False
    sagemaker_port: A[
        int, Flag("sagemaker_port", "Port for SageMaker; 0 for a free one.", low=0, high=65535)
    ] = 8080
    sagemaker_safe_port_range: A[
        str,
        Flag("sagemaker_safe_port_range", "FIRST-LAST, ports the other endpoints may use.", pair="-"),
    ] = ""
    allow_vertex_ai: A[
        bool,
        Flag(
            "allow_vertex_ai",
            "Serve Vertex AI's protocol, at the address of HTTP; true, and HTTP and gRPC are false, where "
            "AIP_MODE is PREDICTION.",
        ),
    ] = False
    vertex_ai_port: A[
        int,
        Flag("vertex_ai_port", "Port for Vertex AI, AIP_HTTP_PORT where that is set.", low=0, high=65535),
    ] = 8080
    vertex_ai_default_model: A[
        str,
        Flag("vertex_ai_default_model", "Model of predictions; by default the only model of the repository."),
    ] = ""
    sagemaker_ping: str = "ready"
    sagemaker_model: str = _NO_MODEL
    sagemaker_type: str = "infer"
    vertex_ai_predict: str = ""
    vertex_ai_health: str = ""

    def fronts(self, http: HttpSettings) -> dict[str, HttpSettings]:
        """Return the settings of the fronts, by their names; plain HTTP, as the platforms end TLS."""
        fronts = {
            "SageMaker": (self.allow_sagemaker, self.sagemaker_port),
            "Vertex AI": (self.allow_vertex_ai, self.vertex_ai_port),
        }
        plain = msgspec.structs.replace(http, reuse_port=False, certificates=None, forwarder=None)
        return {
            name: msgspec.structs.replace(plain, enabled=enabled, port=port)
            for name, (enabled, port) in fronts.items()
        }

    def vertex_ai_model(self, ready: Collection[str]) -> str:
        """Return the model of Vertex AI's predictions.

        Args:
            ready: the names of the models that are ready.

        Raises:
            ValueError: it is not ready, or none is named and not exactly one is ready.
        """
        model = self.vertex_ai_default_model
        if model and model not in ready:
            raise ValueError(f"Expect the default model '{model}' is loaded")
        if not model and len(ready) != 1:
            raise ValueError(
                "Expect the model repository contains only a single model if default model is not specified"
            )
        return model or next(iter(ready))

    @property
    def safe_ports(self) -> tuple[int, int] | None:
        """First and last port of `--sagemaker-safe-port-range`."""
        if not self.sagemaker_safe_port_range:
            return None
        first, last = self.sagemaker_safe_port_range.split("-")
        return int(float(first)), int(float(last))


def with_environment(flags: CloudSettings) -> CloudSettings:
    """Return settings with what the environment says of the fronts that are on.

    Raises:
        ValueError: a variable is missing, or has a value that it may not have.
    """
    return _for_vertex_ai(_for_sagemaker(flags, os.environ), os.environ)


def _for_sagemaker(flags: CloudSettings, environment: Mapping[str, str]) -> CloudSettings:
    if not flags.allow_sagemaker:
        return flags
    return msgspec.structs.replace(
        flags,
        sagemaker_ping=_one_of("SAGEMAKER_TRITON_PING_MODE", _PING_MODES, environment),
        sagemaker_type=_one_of("SAGEMAKER_TRITON_INFERENCE_TYPE", _INFERENCE_TYPES, environment),
        sagemaker_model=environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME") or _NO_MODEL,
    )


def _one_of(name: str, choices: tuple[str, ...], environment: Mapping[str, str]) -> str:
    value = environment.get(name) or choices[0]
    if value not in choices:
        raise ValueError(f"Invalid {name} '{value}'. Must be one of: {', '.join(choices)}")
    return value


def _for_vertex_ai(flags: CloudSettings, environment: Mapping[str, str]) -> CloudSettings:
    if not flags.allow_vertex_ai:
        return flags
    for name in ("AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"):
        if not environment.get(name, "").startswith("/"):
            problem = "is no path" if environment.get(name) else "is not defined"
            raise ValueError(f"{name} {problem} for Vertex AI endpoint")
    return msgspec.structs.replace(
        flags,
        vertex_ai_predict=environment["AIP_PREDICT_ROUTE"],
        vertex_ai_health=environment["AIP_HEALTH_ROUTE"],
    )


def platform_defaults(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the defaults of flags in a container of Vertex AI, as tritonserver sets them.

    Args:
        given: the values of the flags that were given.
        environment: the variables of the process.

    Returns:
        Texts by flag, only of flags that were not given.
    """
    found: dict[str, Any] = {}
    if environment.get("AIP_MODE") == "PREDICTION":
        found = {"allow_vertex_ai": "true", "allow_http": "false", "allow_grpc": "false"}
    if port := environment.get("AIP_HTTP_PORT"):
        found["vertex_ai_port"] = port
    allowed = given.get("allow_vertex_ai", found.get("allow_vertex_ai") == "true")
    if allowed and (place := environment.get("AIP_STORAGE_URI")):
        found["model_repository"] = [place]
    return {name: value for name, value in found.items() if name not in given}
