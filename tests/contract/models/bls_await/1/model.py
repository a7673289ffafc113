"""Calls another model three times, first one call and then two at once, and awaits what they answer."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*[self._respond(request) for request in requests])

    async def _respond(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT")
        values = await self._ask(tensor.as_numpy())
        first, second = await asyncio.gather(self._ask(values), self._ask(values))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", first + second)])

    async def _ask(self, values):
        call = pb_utils.InferenceRequest(
            model_name="custom_identity_int32",
            requested_output_names=["OUTPUT0"],
            inputs=[pb_utils.Tensor("INPUT0", values.reshape(1, -1))],
        )
        response = await call.async_exec()
        return pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy().ravel()
