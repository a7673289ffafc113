"""A Python model that does what the parameter `do` of a request says, for processes of their own."""

import json
from typing import Any

import numpy as np

from tests.unit.backend_harness import Call, Served, infer

SECONDS = 30.0

MODEL = """
import os, signal, sys, time
import only_here

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(64)
        return config

    def initialize(self, args):
        self.args = args
        self.ready = True
        print("a word of the model")
        self.family = pb_utils.MetricFamily("served", "Requests", pb_utils.MetricFamily.COUNTER)
        self.served = self.family.Metric({"of": args["model_name"]})

    def execute(self, requests):
        self.served.increment(len(requests))
        return [self.one(r, json.loads(r.parameters()).get("do", "identity")) for r in requests]

    def one(self, request, do):
        found = getattr(self, do)(request)
        if isinstance(found, pb_utils.InferenceResponse) or found is None:
            return found
        if not isinstance(found, np.ndarray):
            found = np.array([[json.dumps(found)]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("O", found)], parameters={"did": do})

    def identity(self, request):
        return request.inputs()[0].as_numpy()

    def in_place(self, request):
        array = request.inputs()[0].as_numpy()
        array += 1
        return array

    def about(self, request):
        tensor = request.inputs()[0]
        return [only_here.WHERE, sys.prefix, self.args["model_instance_name"], __name__,
                request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
                sorted(request.requested_output_names()),
                request.trace().get_context(), tensor.shape(), tensor.triton_dtype(),
                pb_utils.get_model_dir(), sorted(set(sys.modules) & {"msgspec", "google.protobuf", "ray"})]

    def fails(self, request):
        raise ValueError("no")

    def refuses(self, request):
        error = pb_utils.TritonError("missing", pb_utils.TritonError.NOT_FOUND)
        return pb_utils.InferenceResponse(error=error)

    def odd(self, request):
        return pb_utils.InferenceResponse([], parameters={"p": object()})

    def cancelled(self, request):
        return [request.is_cancelled()]

    def logs(self, request):
        pb_utils.Logger.log_warn("look here")
        return []

    def not_ready(self, request):
        self.ready = False
        return []

    def is_ready(self):
        return self.ready

    def reschedules(self, request):
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def later(self, request):
        sender = request.get_response_sender()
        answer = pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([[b"later"]], dtype=object))])
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        threading.Timer(0.05, lambda: sender.send(answer, final)).start()

    def call(self, name, **more):
        tensor = pb_utils.Tensor("x", np.arange(3, dtype=np.float32))
        return pb_utils.InferenceRequest("", 0, [tensor], ["y"], name, **more)

    def calls(self, request):
        response = self.call("m2", trace=request.trace()).exec()
        return pb_utils.get_output_tensor_by_name(response, "y").as_numpy().tolist()

    def calls_twice(self, request):
        async def both():
            return await asyncio.gather(self.call("m2").async_exec(), self.call("m2").async_exec())
        return [len(r.output_tensors()) for r in asyncio.run(both())]

    def calls_many(self, request):
        responses = self.call("many").exec(decoupled=True)
        return [[t.as_numpy().tolist() for t in r.output_tensors()] for r in responses]

    def calls_nobody(self, request):
        error = self.call("nobody").exec().error()
        return [error.message(), error.code()]

    def manages(self, request):
        pb_utils.load_model("new", "{}", {"file:1/x": b"ab"})
        try:
            pb_utils.unload_model("bad")
        except pb_utils.TritonModelException as error:
            return [str(error), pb_utils.is_model_ready("new"), pb_utils.is_model_ready("new", "7")]

    def ends(self, request):
        os._exit(3)

    def crashes(self, request):
        os.kill(os.getpid(), signal.SIGSEGV)

    def forks(self, request, apart=True):
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        if apart:
            os.setpgid(child, child)
        return [child]

    def forks_worker(self, request):
        return self.forks(request, apart=False)

    def hangs(self, request):
        time.sleep(60)

    def finalize(self):
        open(self.args["model_repository"] + "/finalized", "w").close()
"""


def ask(served: Served, do: str, array: Any = None, **fields: Any) -> Call:
    inputs = {"I": np.ones((1, 2), np.float32) if array is None else array}
    (call,) = served(infer(inputs, parameters={"do": do}, **fields))
    return call


def told(call: Call) -> Any:
    return json.loads(call.arrays["O"][0, 0])
