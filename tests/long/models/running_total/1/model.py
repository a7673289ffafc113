import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self._totals = {}

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def finalize_sequence(self, correlation_id):
        self._totals.pop(correlation_id, None)

    def _respond(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        if not request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            values = self._totals[request.correlation_id()] + values
        self._totals[request.correlation_id()] = values.copy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values)])
