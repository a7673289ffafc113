"""A JPEG or PNG file to its pixels, UINT8 [height, width, 3], and to what PP-OCR's text detection expects.

Detection takes FP32 [1, 3, height, width], `value / 127.5 - 1`, both sides multiples of 32.
"""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps

STEP = 32


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self._max_bytes = int(parameters["max_bytes"]["string_value"])
        self._max_pixels = int(parameters["max_pixels"]["string_value"])
        self._max_side = int(parameters["max_side"]["string_value"])
        Image.MAX_IMAGE_PIXELS = None  # Pillow only warns at its limit; ours refuses

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        (file,) = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().ravel()
        try:
            image = self._decode(file)
        except Exception as error:  # a damaged file makes decoders raise errors of every kind
            refusal = pb_utils.TritonError(f"input 'image': {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        scale = min(1, self._max_side / max(image.size))
        resized = image.resize([_multiple(side * scale) for side in image.size], Image.Resampling.BILINEAR)
        pixels = np.asarray(resized, np.float32).transpose(2, 0, 1)[np.newaxis] / 127.5 - 1
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("picture", np.array(image)), pb_utils.Tensor("pixels", pixels)]
        )

    def _decode(self, file):
        if len(file) > self._max_bytes:
            raise ValueError(f"{len(file)} bytes exceed the limit of {self._max_bytes}")
        image = Image.open(io.BytesIO(file), formats=("JPEG", "PNG"))
        if image.width * image.height > self._max_pixels:
            raise ValueError(f"{image.width} x {image.height} pixels exceed the limit of {self._max_pixels}")
        return ImageOps.exif_transpose(image).convert("RGB")


def _multiple(side):
    return max(STEP, round(side / STEP) * STEP)
