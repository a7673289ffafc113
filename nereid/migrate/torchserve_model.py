"""Runs a handler of TorchServe: `initialize(context)`, then `handle(data, context)` for each batch.

Written by `nereid migrate torchserve`; the archive's files are in the folder `archive` beside this one.
"""

import base64
import importlib
import inspect
import io
import json
import os
import sys
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class RequestProcessor:
    """Headers of a request, and those of its response."""

    def __init__(self, headers: Any) -> None:
        self.headers = headers
        self.response_headers: dict[str, str] = {}
        self.status = 200

    def get_request_property(self, key: Any) -> Any:
        return self.headers.get(key)

    def get_request_properties(self) -> Any:
        return self.headers

    def add_response_property(self, key: Any, value: Any) -> None:
        self.response_headers[key] = value

    def get_response_headers(self) -> Any:
        return self.response_headers

    def report_status(self, code: Any, reason_phrase: Any = None) -> None:
        self.status = code


class Metrics:
    """Takes metrics of handlers, and drops them."""

    def __getattr__(self, name: Any) -> Any:
        return lambda *arguments, **named: self


class Context:
    """What a handler knows of its model and of the batch it handles."""

    def __init__(self, model_name: Any, manifest: Any, system_properties: Any, settings: Any) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.system_properties = system_properties
        self.model_yaml_config = settings
        self.metrics = Metrics()
        self.request_ids: dict[int, str] = {}
        self.request_processor: list[RequestProcessor] = []
        self.stopping_criteria = None

    def begin(self, requests: Any, types: Any) -> None:
        """Start a batch."""
        self.request_ids = {index: request.request_id() for index, request in enumerate(requests)}
        self.request_processor = [RequestProcessor({"Content-Type": each}) for each in types]

    def get_request_id(self, idx: Any = 0) -> Any:
        return self.request_ids.get(idx)

    def get_request_header(self, idx: Any, key: Any) -> Any:
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: Any) -> Any:
        return self.request_processor[idx].get_request_properties()

    def set_response_header(self, idx: Any, key: Any, value: Any) -> None:
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: Any) -> Any:
        return self.request_processor[idx].get_response_headers()

    def set_response_content_type(self, idx: Any, value: Any) -> None:
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: Any) -> Any:
        return self.get_response_headers(idx).get("content-type")

    def set_response_status(self, code: Any = 200, phrase: Any = "", idx: Any = 0) -> None:
        if idx < len(self.request_processor):
            self.request_processor[idx].report_status(code, phrase)

    def set_all_response_status(self, code: Any = 200, phrase: Any = "") -> None:
        for processor in self.request_processor:
            processor.report_status(code, phrase)


class ImageClassifier:
    """TorchServe's handler `image_classifier`: the five best classes of a picture."""

    def initialize(self, context: Any) -> None:
        import torch as torch_module

        torch: Any = torch_module
        model = context.manifest["model"]
        directory = context.system_properties["model_dir"]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        weights = os.path.join(directory, model.get("serializedFile", ""))
        if model.get("modelFile"):
            module = importlib.import_module(os.path.splitext(model["modelFile"])[0])
            (made,) = classes_of(module)
            self.model = made()
            self.model.load_state_dict(torch.load(weights, map_location=self.device, weights_only=True))
        else:
            self.model = torch.jit.load(weights, map_location=self.device)
        self.model.to(self.device).eval()
        labels = os.path.join(directory, "index_to_name.json")
        self.labels = None
        if os.path.isfile(labels):
            with open(labels) as file:
                found = json.load(file)
            self.labels = {
                str(key): value[1] if isinstance(value, list) else value for key, value in found.items()
            }

    def handle(self, data: Any, context: Any) -> Any:
        import torch

        pictures = torch.stack([self._picture(row.get("data") or row.get("body")) for row in data])
        with torch.inference_mode():
            scores = torch.softmax(self.model(pictures.to(self.device)), dim=1)
        best, classes = torch.topk(scores, min(5, scores.shape[1]), dim=1)
        return [
            dict(zip(map(self._label, row), values, strict=True))
            for row, values in zip(classes.tolist(), best.tolist(), strict=True)
        ]

    def _label(self, number: Any) -> Any:
        return str(number) if self.labels is None else self.labels[str(number)]

    def _picture(self, value: Any) -> Any:
        import torch
        from PIL import Image

        if isinstance(value, str):
            value = base64.b64decode(value)
        if not isinstance(value, (bytes, bytearray)):
            return torch.FloatTensor(value)
        picture: Any = Image.open(io.BytesIO(value))
        width, height = picture.size
        scale = 256 / min(width, height)
        size = (256, int(256 * height / width)) if width < height else (int(256 * width / height), 256)
        if scale != 1:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
        picture = picture.crop((left, top, left + 224, top + 224))
        array = np.asarray(picture, np.float32).transpose(2, 0, 1) / 255
        mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        return torch.from_numpy(((array - mean[:, None, None]) / deviation[:, None, None]).astype(np.float32))


def classes_of(module: Any) -> list[Any]:
    """Return the classes that a module defines."""
    found: list[Any] = [each for _, each in inspect.getmembers(module, inspect.isclass)]
    return [each for each in found if each.__module__ == module.__name__]


def import_handler(name: Any) -> Any:
    """Return the module of a handler, as TorchServe finds it; None for one that is here."""
    if name == "image_classifier":
        return None
    module_name = os.path.basename(name.partition(":")[0])
    module_name = module_name[:-3] if module_name.endswith(".py") else module_name
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        return importlib.import_module(f"ts.torch_handler.{module_name}")


def make_handler(module: Any, function: Any) -> Any:
    """Return what initialises a handler, and what handles a batch."""
    if module is None:
        handler = ImageClassifier()
        return handler.initialize, handler.handle
    if hasattr(module, function or "handle"):
        handle = getattr(module, function or "handle")
        return (lambda context: handle(None, context)), handle
    classes = classes_of(module)
    if len(classes) != 1:
        raise ValueError(
            f"Expected only one class in custom service code or a function entry point {classes}"
        )
    service = classes[0]()
    return service.initialize, service.handle


def read_part(content_type: Any, content: Any) -> Any:
    """Return a part of a request as TorchServe gives it to handlers."""
    kind = content_type.partition(";")[0].strip()
    try:
        if kind == "application/json":
            return json.loads(content)
        if kind.startswith("text"):
            return content.decode()
    except ValueError:
        pass
    return bytearray(content)


def write_answer(answer: Any) -> Any:
    """Return an element of a handler's result as TorchServe sends it."""
    if isinstance(answer, (bytes, bytearray)):
        return bytes(answer)
    if isinstance(answer, str):
        return answer.encode()
    return json.dumps(answer, indent=2).encode()


DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "archive")
with open(os.path.join(DIRECTORY, "MAR-INF", "MANIFEST.json")) as manifest_file:
    MANIFEST = json.load(manifest_file)
sys.path.insert(0, DIRECTORY)
# Here, not when an instance starts: models of one process are imported one by one, each as if alone.
HANDLER = import_handler(MANIFEST["model"]["handler"])


class TritonPythonModel:
    """The adapter."""

    def initialize(self, args: Any) -> None:
        config = json.loads(args["model_config"])
        settings: dict[str, Any] = {}
        if MANIFEST["model"].get("configFile"):
            import yaml

            with open(os.path.join(DIRECTORY, MANIFEST["model"]["configFile"])) as file:
                settings = yaml.safe_load(file) or {}
        device = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None
        properties = {
            "model_dir": DIRECTORY,
            "gpu_id": device,
            "batch_size": config["max_batch_size"],
            "server_name": "Nereid",
            "server_version": "0.12.0",
            "limit_max_image_pixels": True,
        }
        self.context = Context(args["model_name"], MANIFEST, properties, settings)
        start, self.handle = make_handler(HANDLER, MANIFEST["model"]["handler"].partition(":")[2])
        start(self.context)

    def execute(self, requests: Any) -> Any:
        rows, types = zip(*map(self.read, requests), strict=True)
        self.context.begin(requests, types)
        answers = self.handle(list(rows), self.context)
        if len(answers) != len(requests):
            raise ValueError(f"the handler returned {len(answers)} answers for {len(requests)} requests")
        return [self.respond(index, answer) for index, answer in enumerate(answers)]

    def read(self, request: Any) -> Any:
        """Return the parts of a request by name, and the content type of the first."""
        columns = [
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel().tolist()
            for name in ("names", "content_types", "parts")
        ]
        parts = [
            (name.decode(), kind.decode(), content) for name, kind, content in zip(*columns, strict=True)
        ]
        return {name: read_part(kind, content) for name, kind, content in parts}, parts[0][1]

    def respond(self, index: Any, answer: Any) -> Any:
        processor = self.context.request_processor[index]
        if processor.status >= 400:
            text = f"the handler answered with status {processor.status}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        content_type = processor.response_headers.get("content-type") or ""
        outputs = [
            pb_utils.Tensor(name, np.array([[value]], dtype=object))
            for name, value in (("answer", write_answer(answer)), ("content_type", content_type.encode()))
        ]
        return pb_utils.InferenceResponse(output_tensors=outputs)
