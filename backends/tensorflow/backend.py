"""Backend of TensorFlow models, which releases the GIL while a session runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import tensorflow as tf
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError, internal, invalid_arg
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.tensorflow.completion import complete
from backends.tensorflow.options import (
    SAVED_MODEL,
    default_batch,
    instances_per_session,
    model_path,
    platform,
)
from backends.tensorflow.saved_model import read_meta_graph, read_signature
from backends.tensorflow.sessions import Array, Sessions, TfSession, explained
from backends.tensorflow.warmup import warm_up

_EXTENSIONS: Final = "extension-directory"


class TensorFlowBackend(ArrayBackend):
    """Backend `tensorflow`: `model.savedmodel` is a directory, `model.graphdef` a file.

    The instances of a device share one session, with the weights once, unless MAX_SESSION_SHARE_COUNT says
    otherwise.
    """

    def model_initialize(self, model: Model) -> None:
        platform(model.config)
        for name in model.config.model_operations.op_library_filename:
            _load_operations(model, name)
        model.state = Sessions(instances_per_session(model))

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> TfSession:
        sessions: Sessions = instance.model.state
        session = sessions.take(instance)
        if not instance.model.config.model_warmup:
            warm_up(session, instance.model.name)
        return session

    def instance_finalize(self, instance: Instance) -> None:
        session, instance.state = instance.state, None
        if session is not None:
            instance.model.state.release(session)

    def execute(
        self, loaded: TfSession, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        return loaded.run(inputs, outputs)

    def runs_on_event_loop(self, instance: Instance) -> bool:
        return instance.kind == "CPU"

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        path = model_path(model)
        if platform(model.config) != SAVED_MODEL or not path.exists():
            return model.config  # a GraphDef does not say what its inputs and outputs are
        try:
            signature = read_signature(model, read_meta_graph(model, path))
        except InferError as error:
            raise internal(
                f"unable to auto-complete model configuration for '{model.name}', failed to load model:"
                f" {error.message}"
            ) from error
        return complete(model.config, signature, default_batch(model.backend_config))


def _load_operations(model: Model, name: str) -> None:
    """Load a library of operations.

    A configuration may come from a client, and a library is code: it must lie in the model's directory, or
    below `--backend-config=tensorflow,extension-directory=DIRECTORY`.

    Raises:
        InferError: INVALID_ARG for a library elsewhere, INTERNAL for one that cannot be loaded.
    """
    path = (model.version_directory / name).resolve()
    allowed = model.backend_config.get(_EXTENSIONS)
    places = [model.directory, *([Path(allowed)] if allowed else [])]
    if not any(path.is_relative_to(place.resolve()) for place in places):
        raise invalid_arg(
            f"'op_library_filename' of model '{model.name}' names '{name}', outside the model's directory:"
            f" --backend-config=tensorflow,{_EXTENSIONS}=DIRECTORY allows libraries below another"
        )
    try:
        tf.load_op_library(str(path))
    except Exception as error:
        raise explained(error) from error
