"""The words of a prompt, one in each response and `delay_ms` apart; "fail" in their place is an error.

Requests are worked off in threads: a slow one stops no other. "cancelled" answers how many were cancelled.
"""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self._cancelled = 0

    def execute(self, requests):
        for request in requests:
            given = {tensor.name(): tensor.as_numpy()[0] for tensor in request.inputs()}
            text = given["prompt"].decode()
            if "messages" in given:
                text = json.loads(given["messages"])["messages"][-1]["content"]
            sender, delay = request.get_response_sender(), int(given.get("delay_ms", 0)) / 1000
            limit = json.loads(request.parameters() or "{}").get("max_tokens", 1 << 20)
            threading.Thread(target=self._answer, args=(sender, text, delay, limit), daemon=True).start()

    def _answer(self, sender, text, delay, limit):
        words = text.split(" ")
        for at, word in enumerate(words[:limit]):
            time.sleep(delay)
            if sender.is_cancelled():
                self._cancelled += 1
                break
            if word == "fail":
                error = pb_utils.TritonError("it was told to fail", pb_utils.TritonError.INTERNAL)
                sender.send(pb_utils.InferenceResponse(error=error), flags=_FINAL)
                return
            word = str(self._cancelled) if word == "cancelled" else word
            sender.send(self._response((" " if at else "") + word, len(words)))
        sender.send(flags=_FINAL)

    @staticmethod
    def _response(text, words):
        numbers = {"num_input_tokens": words, "num_output_tokens": 1}
        tensors = [pb_utils.Tensor(name, np.array([value], np.uint32)) for name, value in numbers.items()]
        return pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array([text], np.object_)), *tensors])
