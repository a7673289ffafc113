"""Calls another model twice, one call after the other, and does nothing that needs a thread of its own."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        total = 0
        values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        for _ in range(2):
            tensor = pb_utils.Tensor("INPUT0", values.reshape(1, -1))
            call = pb_utils.InferenceRequest(
                model_name="custom_identity_int32", requested_output_names=["OUTPUT0"], inputs=[tensor]
            )
            response = call.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            total = total + pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy().ravel()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", total)])
