"""What Triton documents of `triton_python_backend_utils`: expressions over it, and what they give.

Each is evaluated by a model in `execute`. There `R` is its request, `T` a tensor, `Q` makes a request for
another model, `M` is a configuration under completion, `answer` reads that model's response, `drain` an
iterator of them. The other model is made up: it doubles its input, in two responses where it may.
"""

from typing import Any, Final

CONFIG: Final = '{"name": "m", "max_batch_size": 2, "input": [], "output": []}'

MODEL: Final = """
import functools

T = pb_utils.Tensor("x", np.array([[1, 2], [3, 4]], np.float32))

def Q(**fields):
    known = {"model_name": "double", "inputs": [T], "requested_output_names": ["y"]}
    return pb_utils.InferenceRequest(**{**known, **fields})

def answer(response):
    return pb_utils.get_output_tensor_by_name(response, "y").as_numpy().tolist()

def drain(responses):
    return [len(response.output_tensors()) for response in responses]

def raised(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Exception as error:
        return type(error).__name__ + ": " + str(error)

async def awaited(*requests, **how):
    return await asyncio.gather(*[request.async_exec(**how) for request in requests])

def metric(kind, *operations, **options):
    family = pb_utils.MetricFamily(name="f_" + str(int(kind)), description="d", kind=kind)
    made = family.Metric(labels={"a": "b"}, **options)
    for name, value in operations:
        getattr(made, name)(value)
    made.family = family  # without which it is of no use
    return made

def send(request, text):
    response = pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([[text]], dtype=object))])
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    request.get_response_sender().send(response=response, flags=flags)

class TritonPythonModel:
    def execute(self, requests):
        names = dict(globals(), M=pb_utils.ModelConfig(CONFIG))
        given = [json.loads(request.parameters())["evaluate"] for request in requests]
        responses = []
        for request, expression in zip(requests, given):
            found = eval(expression, dict(names, R=request))
            responses.append(None if found is None else self.respond(found))
        return responses

    def respond(self, found):
        text = np.array([[json.dumps(found)]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("O", text)])
""".replace("CONFIG", repr(CONFIG))

TENSOR: Final = {
    "pb_utils.Tensor('x', np.ones(2)).name()": "x",
    "T.as_numpy().tolist()": [[1, 2], [3, 4]],
    "T.triton_dtype()": 11,
    "T.is_cpu()": True,
    "T.shape()": [2, 2],
    "pb_utils.Tensor.from_dlpack('d', T).as_numpy().tolist()": [[1, 2], [3, 4]],
    "pb_utils.Tensor.from_dlpack('d', T.to_dlpack()).name()": "d",
    "np.from_dlpack(T).tolist()": [[1, 2], [3, 4]],
    "len(T.__dlpack_device__())": 2,
    "T.__dlpack__() is not None": True,
}
REQUEST: Final = {
    "Q(request_id='r').request_id()": "r",
    "[Q(correlation_id=c).correlation_id() for c in (7, 'c')]": [7, "c"],
    "raised(Q, correlation_id=1.5)": "TritonModelException: Correlation ID must be integer or string",
    "[tensor.name() for tensor in Q().inputs()]": ["x"],
    "sorted({'z'} | Q().requested_output_names() | R.requested_output_names())": ["O", "y", "z"],
    "Q(parameters={'a': 1, 'b': True, 'c': 'd'}).parameters()": '{"a": 1, "b": true, "c": "d"}',
    "raised(Q, parameters={'a': [1]})": (
        "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'list'>"
    ),
    "raised(Q, parameters={1: 1})": (
        "TritonModelException: Expect parameters keys to have type str, found type <class 'int'>"
    ),
    "raised(Q, parameters=[1])": "TritonModelException: Expect dict, got <class 'list'>",
    "raised(Q, parameters={'a': 1 << 63})": (
        "TritonModelException: Expect parameters values of at most 64 bits, found 9223372036854775808"
    ),
    "Q(flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START).flags()": 1,
    "(lambda q: (q.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END), q.flags())[1])(Q())": 2,
    "Q(timeout=9).timeout()": 9,
    "Q(model_version=3, trace=R.trace()).trace().get_context() == R.trace().get_context()": True,
    "isinstance(R.trace(), pb_utils.InferenceTrace)": True,
    "R.is_cancelled()": False,
    "R.request_id()": "asked",
    "R.set_release_flags(flags=pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL) or 0": 0,
    "pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": 2,
    "bool(Q(preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)))": True,
    "bool(Q(preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU)))": True,
}
CALLS: Final = {
    "answer(Q().exec())": [[2, 4], [6, 8]],
    "Q(model_name='nobody').exec().error().message()": "nobody is not ready",
    "drain(Q().exec(decoupled=True))": [1, 1, 0],
    "[drain(r) for r in [Q().exec(decoupled=True)] * 2]": [[1, 1, 0], [1, 1, 0]],
    "isinstance(Q().exec(decoupled=True), pb_utils.ResponseIterator)": True,
    "Q().exec(decoupled=True).cancel() or 0": 0,
    "answer(next(iter(Q().exec(decoupled=True))))": [[2, 4], [6, 8]],
    "[answer(r) for r in asyncio.run(awaited(Q(), Q()))]": [[[2, 4], [6, 8]]] * 2,
    "[drain(r) for r in asyncio.run(awaited(Q(), decoupled=True))]": [[1, 1, 0]],
    "pb_utils.load_model(model_name='n', config='{}', files={'file:1/model.onnx': b'x'}) or 0": 0,
    "raised(pb_utils.unload_model, model_name='bad', unload_dependents=True)": (
        "TritonModelException: failed to unload 'bad'"
    ),
    "[pb_utils.is_model_ready(model_name='n', model_version=v) for v in ('', '1')]": [True, False],
}
RESPONSE: Final = {
    "[t.name() for t in pb_utils.InferenceResponse(output_tensors=[T]).output_tensors()]": ["x"],
    "pb_utils.InferenceResponse(error=pb_utils.TritonError('no')).has_error()": True,
    "pb_utils.InferenceResponse(error=pb_utils.TritonError('no')).error().message()": "no",
    "pb_utils.InferenceResponse(parameters={'a': 1}).parameters()": '{"a": 1}',
    "raised(pb_utils.InferenceResponse, parameters={'a': None})": (
        "TritonModelException: Expect parameters values to have type bool/int/str, found type"
        " <class 'NoneType'>"
    ),
    "isinstance(R.get_response_sender(), pb_utils.InferenceResponseSender)": True,
    "R.get_response_sender().is_cancelled()": False,
    "send(R, '[1]')": [1],
    "raised(R.get_response_sender().send)": (
        "TritonModelException: Inference Response object must be provided when the response flags is set to"
        " zero."
    ),
    "raised(R.get_response_sender().send, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)": (
        "TritonModelException: Unable to send response. Non-decoupled model cannot send complete final before"
        " sending a response."
    ),
}
ERRORS: Final = {
    "pb_utils.TritonError(message='t', code=pb_utils.TritonError.CANCELLED).code()": 7,
    "pb_utils.TritonError('t').code() == pb_utils.TritonError.INTERNAL": True,
    "[pb_utils.TritonError.UNKNOWN, pb_utils.TritonError.NOT_FOUND]": [0, 2],
    "[pb_utils.TritonError.INVALID_ARG, pb_utils.TritonError.UNAVAILABLE]": [3, 4],
    "[pb_utils.TritonError.UNSUPPORTED, pb_utils.TritonError.ALREADY_EXISTS]": [5, 6],
    "issubclass(pb_utils.TritonModelException, Exception)": True,
}
LOG: Final = {
    "[pb_utils.Logger.log_info(message='m'), pb_utils.Logger.log_warn(message='m')]": [None] * 2,
    "[pb_utils.Logger.log_error(message='m'), pb_utils.Logger.log_verbose(message='m')]": [None] * 2,
    "pb_utils.Logger.log('m', pb_utils.Logger.LogLevel.WARNING) or 0": 0,
    "pb_utils.Logger.log(message='m', level=pb_utils.Logger.ERROR) or 0": 0,
    "[pb_utils.Logger.log('m'), pb_utils.Logger.INFO, pb_utils.Logger.VERBOSE]": [None, 0, 3],
}
METRICS: Final = {
    "metric(pb_utils.MetricFamily.COUNTER, ('increment', 2.5)).value()": 2.5,
    "metric(pb_utils.MetricFamily.GAUGE, ('set', 4), ('increment', -1)).value()": 3,
    "metric(pb_utils.MetricFamily.HISTOGRAM, ('observe', 4), buckets=[1, 2]) is not None": True,
}
COMPLETION: Final = {
    "M.as_dict()['name']": "m",
    "(M.set_max_batch_size(4), M.as_dict()['max_batch_size'])[1]": 4,
    "(M.set_dynamic_batching(), M.as_dict()['dynamic_batching'])[1]": {},
    "(M.add_input({'name': 'i', 'data_type': 'TYPE_FP32', 'dims': [1]}), len(M.as_dict()['input']))[1]": 1,
    "(M.add_output({'name': 'o', 'data_type': 'TYPE_FP32', 'dims': [1]}), len(M.as_dict()['output']))[1]": 1,
    "(M.set_model_transaction_policy({'decoupled': True}), M.as_dict()['model_transaction_policy'])[1]": {
        "decoupled": True
    },
}
FUNCTIONS: Final = {
    "pb_utils.get_input_tensor_by_name(R, 'I').shape()": [1, 1],
    "pb_utils.get_input_tensor_by_name(R, 'J') is None": True,
    "pb_utils.get_input_config_by_name({'input': [{'name': 'i', 'dims': [1]}]}, 'i')['dims']": [1],
    "pb_utils.get_output_config_by_name({'output': []}, 'i') is None": True,
    "pb_utils.using_decoupled_model_transaction_policy({'model_transaction_policy': {'decoupled': 1}})": True,
    "pb_utils.triton_string_to_numpy('TYPE_INT8') is np.int8": True,
    "pb_utils.TRITON_STRING_TO_NUMPY['TYPE_STRING'] is np.object_": True,
    "[pb_utils.triton_to_numpy_type(n) is t for n, t in ((1, np.bool_), (13, np.object_), (99, None))]": [
        True
    ]
    * 3,
    "[pb_utils.numpy_to_triton_type(t) for t in (np.bool_, np.float16, np.bytes_)]": [1, 10, 13],
    "pb_utils.serialize_byte_tensor(np.array(['a'], object)).hex()": "0100000061",
    "pb_utils.deserialize_bytes_tensor(bytes.fromhex('0100000061'))[0] == b'a'": True,
    "pb_utils.get_model_dir().endswith('/1')": True,
}

EVERYTHING: Final[dict[str, Any]] = (
    TENSOR | REQUEST | CALLS | RESPONSE | ERRORS | LOG | METRICS | COMPLETION | FUNCTIONS
)
