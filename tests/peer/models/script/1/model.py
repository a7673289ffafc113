"""Each letter of IN is a response, r, or an error, e; unless the last is a capital, an empty one follows."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            letters = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
            sender = request.get_response_sender()
            for number, letter in enumerate(letters):
                sender.send(self._response(number, letter.lower()), flags=FINAL if letter.isupper() else 0)
            if not letters[-1:].isupper():
                sender.send(flags=FINAL)

    def _response(self, number, letter):
        if letter == "r":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))])
        error = pb_utils.TritonError("refused by the model", pb_utils.TritonError.UNAVAILABLE)
        return pb_utils.InferenceResponse([], error)
