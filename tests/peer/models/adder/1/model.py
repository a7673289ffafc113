import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        value, start, sequence = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("INPUT", "START", "CORRID")
        )
        key = int(sequence.flat[0])
        self.sums[key] = value + (0 if start.flat[0] else self.sums.get(key, 0))
        outputs = [pb_utils.Tensor("OUTPUT", self.sums[key]), pb_utils.Tensor("ID", sequence)]
        return pb_utils.InferenceResponse(outputs)
