"""PROMPT as TEXT, in one response or, with STREAM, in several of them and an empty last one.

Parameters: REPETITION responses (1), each DELAY milliseconds (0) after the one before and its text SIZE times
(1) the prompt; FAIL_LAST for an error behind them. Every response tells in the parameter `cancelled` how many
requests have been cancelled so far. Requests are worked off one by one.
"""

import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self._cancelled = 0

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            prompt, stream = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0]
                for name in ("PROMPT", "STREAM")
            )
            parameters = json.loads(request.parameters() or "{}")
            if stream:
                self._stream(sender, prompt, parameters)
            else:
                sender.send(self._response(prompt), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, text):
        tensor = pb_utils.Tensor("TEXT", np.array([text], dtype=np.object_))
        return pb_utils.InferenceResponse([tensor], parameters={"cancelled": self._cancelled})

    def _stream(self, sender, prompt, parameters):
        text = prompt * parameters.get("SIZE", 1)
        for _ in range(parameters.get("REPETITION", 1)):
            time.sleep(parameters.get("DELAY", 0) / 1000)
            if sender.is_cancelled():
                self._cancelled += 1
                break
            sender.send(self._response(text))
        if parameters.get("FAIL_LAST"):
            error = pb_utils.TritonError("An Error Occurred", pb_utils.TritonError.UNAVAILABLE)
            sender.send(pb_utils.InferenceResponse(error=error))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
