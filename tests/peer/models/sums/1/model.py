import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        first, second = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1")
        )
        results = {"OUTPUT0": first + second, "OUTPUT1": first - second}
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, value)
                for name, value in results.items()
                if name in request.requested_output_names()
            ]
        )
