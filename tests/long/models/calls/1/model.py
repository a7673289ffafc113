import asyncio
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        together = json.loads(request.parameters() or "{}").get("do") == "together"
        try:
            found = asyncio.run(self._together(values)) if together else self._in_turn(values)
        except pb_utils.TritonModelException as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), error.args[1]))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", found)])

    def _in_turn(self, values):
        for _ in range(2):
            values = self._values(self._call("add_one", values).exec())
        return values

    async def _together(self, values):
        calls = [self._call(model, values).async_exec() for model in ("add_one", "identity")]
        return sum(self._values(response) for response in await asyncio.gather(*calls))

    def _call(self, model, values):
        tensor = pb_utils.Tensor("INPUT0", values)
        return pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["OUTPUT0"], inputs=[tensor]
        )

    def _values(self, response):
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message(), response.error().code())
        return pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()
