import triton_python_backend_utils as pb_utils

CODES = {"UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS"}


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        way = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
        if way == "none":
            return pb_utils.InferenceResponse([])
        if way in CODES:
            error = pb_utils.TritonError("refused by the model", getattr(pb_utils.TritonError, way))
            return pb_utils.InferenceResponse([], error)
        return pb_utils.InferenceResponse([], pb_utils.TritonError("refused by the model"))
