"""Tells which environment it runs in and counts; the request parameter `do` may end its process."""

import json
import os
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        kinds = pb_utils.MetricFamily
        self.requests = kinds("environment_requests", "Requests executed", kinds.COUNTER)
        self.rows = kinds("environment_rows", "Rows", kinds.HISTOGRAM)
        self.counter = self.requests.Metric(labels={"model": args["model_name"]})
        self.spread = self.rows.Metric(buckets=[1, 10])

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        if json.loads(request.parameters()).get("do") == "end":
            os._exit(1)
        values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        self.counter.increment(1)
        self.spread.observe(len(values))
        about = json.dumps({"prefix": sys.prefix, "pid": os.getpid()})
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUTPUT", values + 1),
                pb_utils.Tensor("ABOUT", np.array([about], dtype=object)),
            ]
        )
