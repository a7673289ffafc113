"""What scheduler and router agree on about sequences; texts are those of Triton's sequence batcher."""

from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, Failure, InferError, invalid_arg
from app.core.tensors import SequenceId

_MISSING_START: Final = "must specify the START flag on the first request of the sequence"


def keeps_sequences(config: mc.ModelConfig) -> bool:
    """Whether requests of one sequence must meet: an iterative model makes a sequence of each request."""
    return config.HasField("sequence_batching") and not config.sequence_batching.iterative_sequence


def missing_start(model: str, sequence_id: SequenceId, cause: str = "") -> InferError:
    """The error for a request that continues a sequence nobody has."""
    text = f"inference request for sequence {sequence_id} to model '{model}' {_MISSING_START}"
    return invalid_arg(f"{text}: {cause}" if cause else text)


def is_missing_start(failure: Failure) -> bool:
    """Whether a replica said with this error that it does not have the sequence."""
    return failure.code is ErrorCode.INVALID_ARG and failure.message.endswith(_MISSING_START)
