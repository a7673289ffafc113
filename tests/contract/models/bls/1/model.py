"""Calls other models in each way there is; the request parameter `do` names one."""

import asyncio
import json
import multiprocessing
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        return getattr(self, "_" + json.loads(request.parameters())["do"])(values)

    def _call(self, values, model="custom_identity_int32", **options):
        tensor = pb_utils.Tensor("INPUT0", values.reshape(1, -1))
        return pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["OUTPUT0"], inputs=[tensor], **options
        )

    def _answer(self, response, name="OUTPUT0"):
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        values = pb_utils.get_output_tensor_by_name(response, name).as_numpy()
        return self._output(values)

    def _output(self, values):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.asarray(values, np.int32).ravel())])

    def _repeat(self, values, delay_ms=0):
        tensors = [
            pb_utils.Tensor("IN", values),
            pb_utils.Tensor("DELAY", np.full(len(values), delay_ms, np.uint32)),
            pb_utils.Tensor("WAIT", np.zeros(1, np.uint32)),
        ]
        return pb_utils.InferenceRequest(
            model_name="repeat_int32", requested_output_names=["OUT"], inputs=tensors
        )

    def _identity(self, values):
        return self._answer(self._call(values).exec())

    def _processes(self, values):
        fork = multiprocessing.get_context("fork")
        answers = fork.SimpleQueue()

        def call(value):
            response = self._call(np.array([value], np.int32)).exec()
            answers.put((value, pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()[0, 0]))

        children = [fork.Process(target=call, args=(value,)) for value in values]
        for child in children:
            child.start()
        found = dict(answers.get() for _ in children)
        for child in children:
            child.join()
        return self._output([found[value] for value in values])

    def _version(self, values):
        return self._answer(self._call(values, model_version=7).exec())

    def _missing(self, values):
        return self._answer(self._call(values, "nobody").exec())

    def _itself(self, values):
        return self._answer(self._call(values, "bls").exec())

    def _plain_call_of_decoupled(self, values):
        return self._answer(self._repeat(values).exec(), "OUT")

    def _decoupled(self, values):
        found = []
        for response in self._repeat(values).exec(decoupled=True):
            found += [tensor.as_numpy()[0] for tensor in response.output_tensors()]
        return self._output(found)

    def _advised(self, values):
        responses = self._repeat(values, delay_ms=800).exec(decoupled=True)
        found = [next(responses)]
        responses.cancel()
        found += responses
        if any(response.has_error() for response in found):
            raise pb_utils.TritonModelException("the call was cut off")
        tensors = [tensor for response in found for tensor in response.output_tensors()]
        return self._output([tensor.as_numpy()[0] for tensor in tensors])

    def _ensemble(self, values):
        request = pb_utils.InferenceRequest(
            model_name="repeat_ensemble",
            requested_output_names=["OUT"],
            inputs=self._repeat(values).inputs(),
        )
        found = []
        for response in request.exec(decoupled=True):
            found += [tensor.as_numpy()[0] for tensor in response.output_tensors()]
        return self._output(found)

    def _asynchronous(self, values):
        async def all_at_once():
            calls = [self._call(values + n).async_exec() for n in range(3)]
            return await asyncio.gather(*calls)

        responses = asyncio.run(all_at_once())
        return self._output([pb_utils.get_output_tensor_by_name(r, "OUTPUT0").as_numpy() for r in responses])

    def _thread(self, values):
        found = []
        thread = threading.Thread(target=lambda: found.append(self._identity(values)))
        thread.start()
        thread.join()
        return found[0]

    def _ready(self, values):
        names = ("custom_identity_int32", "nobody", "bls")
        return self._output([pb_utils.is_model_ready(name) for name in names])
