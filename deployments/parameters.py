"""Parameters of a model's configuration that say how many replicas it has, where, and of what size.

Triton has none of them. They are read when a version is deployed; a mistake fails its load.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError, invalid_arg

REPLICAS: Final = "ray_replicas"
RESOURCES: Final = "ray_resources"
PLACEMENT: Final = "ray_placement"
NUM_CPUS: Final = "ray_num_cpus"
MEMORY_BYTES: Final = "ray_memory_bytes"
MAX_REPLICAS: Final = "max_replicas"
MIN_REPLICAS: Final = "min_replicas"
TARGET_LOAD: Final = "target_load"
MAX_QUEUE_MS: Final = "max_queue_ms"
IDLE_SECONDS: Final = "idle_seconds"
FORECAST: Final = "forecast"
FORECAST_OFF: Final = "off"
FORECAST_SHOW: Final = "show"
FORECAST_SCALE: Final = "scale"

_MOST: Final = 1000
"""Serve's controller is tested with so many replicas together."""
_QUEUE_MS: Final = 20.0
_SCALED: Final = (MIN_REPLICAS, TARGET_LOAD, MAX_QUEUE_MS, IDLE_SECONDS, FORECAST)

T = TypeVar("T")


class ScalingBounds(NamedTuple):
    """The bounds within which a version is scaled.

    Attributes:
        most: replicas at the most.
        fewest: replicas at the fewest; 0 where the model may be without any when idle.
        target_load: the wanted share of a replica's places that execute requests.
        max_queue_ms: the 90 % quantile of the time in the queue above which replicas are added.
        idle_seconds: the time without requests after which the last replicas end; 0 for never.
        forecast: whether earlier days tell how many replicas there are to be soon: `off`, `show` or `scale`.
    """

    most: int
    fewest: int = 1
    target_load: float = 0.7
    max_queue_ms: float = _QUEUE_MS
    idle_seconds: float = 0.0
    forecast: str = FORECAST_SHOW


class ReplicaParameters(NamedTuple):
    """The parameters of a model's replicas.

    Attributes:
        replicas: their number, at the start if it is scaled.
        scaling: how the number follows the load; None for a constant number.
        resources: the custom Ray resources of a replica.
        num_cpus: the processors that Ray reserves for a replica.
        memory_bytes: the memory that Ray reserves for a replica; 0 for none.
        packed: whether replicas are to lie on few nodes, not on as many as there are.
    """

    replicas: int
    scaling: ScalingBounds | None
    resources: dict[str, float]
    num_cpus: float
    memory_bytes: int
    packed: bool = False

    @property
    def variable(self) -> bool:
        """Whether there may be fewer or more of them: by the load, or for a part of the requests."""
        return self.scaling is not None or self.replicas > 1

    def started(self, before: int, percent: float = 100.0) -> int:
        """Return the number to start with.

        Args:
            before: replicas that serve the model now; 0 where none do.
            percent: of the model's requests that those which are started are to get.
        """
        if self.scaling is None:
            return _part(self.replicas, percent)
        return min(max(_part(before, percent), self.replicas), self.scaling.most)


def replica_parameters(config: mc.ModelConfig) -> ReplicaParameters:
    """Read the parameters of a configuration.

    Raises:
        InferError: INVALID_ARG that names the parameter, what it must be and what it is.
    """
    scaling = _scaling(config)
    if scaling is not None and REPLICAS in config.parameters:
        raise invalid_arg(
            f"model '{config.name}': '{REPLICAS}' is a constant number, and '{MAX_REPLICAS}' has the number "
            f"follow the load: give one of them, with '{MIN_REPLICAS}' for the fewest replicas"
        )
    constant = _read(config, REPLICAS, 1, _positive, "a positive number")
    return ReplicaParameters(
        max(scaling.fewest, 1) if scaling else constant,
        scaling,
        _resources(config),
        _read(config, NUM_CPUS, 0.0, _amount, "a number of processors, such as 0.5"),
        _read(config, MEMORY_BYTES, 0, _positive, "a positive number of bytes"),
        _read(config, PLACEMENT, "spread", _placement, "'spread' or 'pack'") == "pack",
    )


def _scaling(config: mc.ModelConfig) -> ScalingBounds | None:
    if MAX_REPLICAS not in config.parameters:
        if unused := [name for name in _SCALED if name in config.parameters]:
            raise invalid_arg(
                f"model '{config.name}': parameter '{unused[0]}' has no effect without '{MAX_REPLICAS}'"
            )
        return None
    most = _read(config, MAX_REPLICAS, 1, _positive, "a positive number")
    delay_ms = config.dynamic_batching.max_queue_delay_microseconds / 1000
    found = ScalingBounds(
        most,
        _read(config, MIN_REPLICAS, 1, _natural, "a number from 0 on"),
        _read(config, TARGET_LOAD, 0.7, _share, "a number above 0, up to 1"),
        _read(config, MAX_QUEUE_MS, max(2 * delay_ms, _QUEUE_MS), _above_zero, "a number of milliseconds"),
        _read(config, IDLE_SECONDS, 0.0, _amount, "a number of seconds"),
        _read(config, FORECAST, FORECAST_SHOW, _forecast, "'off', 'show' or 'scale'"),
    )
    if fault := _contradiction(found):
        raise invalid_arg(f"model '{config.name}': {fault}")
    return found


def _contradiction(found: ScalingBounds) -> str:
    """Return why these bounds cannot hold together; "" if they can."""
    if found.most > _MOST:
        return f"parameter '{MAX_REPLICAS}' is {found.most}, at most {_MOST} are supported"
    if found.fewest > found.most:
        return f"parameter '{MIN_REPLICAS}' ({found.fewest}) is above '{MAX_REPLICAS}' ({found.most})"
    if not found.fewest and not found.idle_seconds:
        return f"parameter '{MIN_REPLICAS}' may be 0 only with '{IDLE_SECONDS}' above 0"
    if found.idle_seconds and found.fewest:
        return f"parameter '{IDLE_SECONDS}' has no effect unless '{MIN_REPLICAS}' is 0"
    return ""


def _resources(config: mc.ModelConfig) -> dict[str, float]:
    if RESOURCES not in config.parameters:
        return {}
    text = config.parameters[RESOURCES].string_value
    try:
        return msgspec.json.decode(text, type=dict[str, float])
    except msgspec.DecodeError as error:
        must = 'a JSON object of numbers, such as {"worker": 0.01}'
        raise _wrong(config, RESOURCES, must, f": {error}") from error


def _read(config: mc.ModelConfig, name: str, default: T, read: Callable[[str], T | None], must: str) -> T:
    """Return the value of a parameter, or the default; `read` returns None for a text that is none."""
    if name not in config.parameters:
        return default
    found = read(config.parameters[name].string_value)
    if found is None:
        raise _wrong(config, name, must)
    return found


def _wrong(config: mc.ModelConfig, name: str, must: str, why: str = "") -> InferError:
    text = config.parameters[name].string_value
    return invalid_arg(f"model '{config.name}': parameter '{name}' must be {must}, got '{text}'{why}")


def _part(replicas: int, percent: float) -> int:
    return max(math.ceil(replicas * percent / 100), 1)


def _natural(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() else None


def _placement(text: str) -> str | None:
    return text if text in ("spread", "pack") else None


def _forecast(text: str) -> str | None:
    return text if text in (FORECAST_OFF, FORECAST_SHOW, FORECAST_SCALE) else None


def _positive(text: str) -> int | None:
    return _natural(text) or None


def _amount(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


def _above_zero(text: str) -> float | None:
    return _amount(text) or None


def _share(text: str) -> float | None:
    found = _above_zero(text)
    return found if found is not None and found <= 1 else None
