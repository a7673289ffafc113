"""A stream of tracked objects: frames of `cameras`, boxes of `rectangles`, ids of `tracker`.

An ensemble could not: the frames of one request are one sequence of the tracker, and an ensemble gives
every call of a step the sequence flags of its own request.
"""

import secrets

import numpy as np
import triton_python_backend_utils as pb_utils

DETECTED = ["BOXES", "SCORES", "CLASSES"]
TRACKED = ["TRACK_IDS", "TRACK_BOXES", "TRACK_SCORES", "TRACK_CLASSES"]
START, END = (
    pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                watch(request, sender)
            except Exception as error:
                failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
                sender.send(failed, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def watch(request, sender):
    """Send a response for each frame."""
    sequence = secrets.randbits(63)
    flags = START
    frames = pb_utils.InferenceRequest(
        model_name="cameras", requested_output_names=["FRAME", "INDEX"], inputs=request.inputs()
    )
    try:
        for frame in frames.exec(decoupled=True):
            if frame.has_error():
                raise RuntimeError(frame.error().message())
            if request.is_cancelled():
                return
            if not frame.output_tensors():  # the end
                continue
            picture, index = frame.output_tensors()
            tracks = call("tracker", TRACKED, call("rectangles", DETECTED, [picture]), sequence, flags)
            sender.send(pb_utils.InferenceResponse([picture, index, *tracks]))
            flags = 0
    finally:
        if not flags:  # it has begun
            nothing = [pb_utils.Tensor("BOXES", np.zeros((0, 4), np.float32))]
            nothing.append(pb_utils.Tensor("SCORES", np.zeros(0, np.float32)))
            call("tracker", TRACKED, nothing, sequence, END)


def call(model, outputs, inputs, sequence=0, flags=0):
    """Return the outputs of another model, in the order in which they were asked for."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=outputs,
        inputs=inputs,
        correlation_id=sequence,
        flags=flags,
    )
    response = request.exec()
    if response.has_error():
        raise RuntimeError(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name) for name in outputs]
