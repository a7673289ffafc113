"""The configuration of a model as C++ backends read and complete it."""

import json

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.json import config_to_json
from app.core.errors import internal
from backends.declared import with_completed


def config_text(config: mc.ModelConfig) -> str:
    """Return a configuration as the text that backends read, with every field."""
    return json.dumps(config_to_json(config))


def merged(config: mc.ModelConfig, completed: mc.ModelConfig) -> mc.ModelConfig:
    """Return the configuration with those fields of `completed` that a backend may set.

    Raises:
        InferError: INTERNAL for another scheduler than the configuration's.
    """
    result = with_completed(config, completed)
    present, wanted = (each.WhichOneof("scheduling_choice") for each in (config, completed))
    if present is None and wanted is not None:
        getattr(result, wanted).CopyFrom(getattr(completed, wanted))
    elif present != wanted:
        raise internal(f"Cannot update scheduling choice from {present} to {wanted} when auto-completing.")
    return result
