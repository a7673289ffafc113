"""IN[i] comes back as a response of its own after another DELAY[i] milliseconds.

execute returns after WAIT milliseconds while the responses go on in the background, so those of several
requests interleave.
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self._lock = threading.Lock()
        self._running = set()

    def execute(self, requests):
        for request in requests:
            values, delays, wait = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("IN", "DELAY", "WAIT")
            )
            sender = request.get_response_sender()
            if len(values) != len(delays):
                self._refuse(sender, len(values), len(delays))
                continue
            thread = threading.Thread(target=self._repeat, args=(sender, values, delays), daemon=True)
            with self._lock:
                self._running.add(thread)
            thread.start()
            time.sleep(int(wait[0]) / 1000)

    def _refuse(self, sender, values, delays):
        error = pb_utils.TritonError(
            f"expected IN and DELAY of the same length, got {values} and {delays}",
            pb_utils.TritonError.INVALID_ARG,
        )
        sender.send(
            pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )

    def _repeat(self, sender, values, delays):
        try:
            for index, (value, delay) in enumerate(zip(values, delays, strict=True)):
                time.sleep(int(delay) / 1000)
                if sender.is_cancelled():
                    break
                out = pb_utils.Tensor("OUT", np.array([value], np.int32))
                idx = pb_utils.Tensor("IDX", np.array([index], np.uint32))
                sender.send(pb_utils.InferenceResponse([out, idx]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        finally:
            with self._lock:
                self._running.discard(threading.current_thread())

    def finalize(self):
        with self._lock:
            running = list(self._running)
        for thread in running:
            thread.join()
