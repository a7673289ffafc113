"""Completion and validation of configurations by what descriptions of backends say; see `app.core.config`."""

from collections.abc import Collection, Sequence

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config import normalise as completion
from app.core.config import validation
from backends.registry.descriptions import described, descriptions


def infer_backend(config: mc.ModelConfig, listing: Collection[str]) -> mc.ModelConfig:
    """Return a copy with `backend`, `platform` and `default_model_filename` where the files say them."""
    return completion.infer_backend(config, listing, descriptions())


def normalise(
    config: mc.ModelConfig, gpus: Sequence[int] = (), preferred: Sequence[mc.ModelInstanceGroup] = ()
) -> mc.ModelConfig:
    """Return a copy with Triton's defaults filled in."""
    return completion.normalise(config, described(config.backend), gpus, preferred)


def validate(config: mc.ModelConfig, gpus: Sequence[int] = ()) -> None:
    """Check a configuration that `infer_backend` and `normalise` have completed."""
    validation.validate(config, described(config.backend), gpus)


def validate_model(config: mc.ModelConfig) -> None:
    """Check what of a configuration no backend completes: all but inputs, outputs and instance groups."""
    validation.validate_model(config, described(config.backend))
