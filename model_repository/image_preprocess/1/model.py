"""A JPEG or PNG file to the tensor EfficientNet-Lite0 expects.

The middle 7/8 of the shorter side is cut out as a square, resized to 224 x 224 (bicubic) and scaled to
(value - 127) / 128, as in the evaluation code the network was published with.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

from nereid_client.vision import PictureError, decode, normalise, resize

SIZE = 224
CROP = 224 / 256


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self._max_bytes = int(parameters["max_bytes"]["string_value"])
        self._max_pixels = int(parameters["max_pixels"]["string_value"])
        Image.MAX_IMAGE_PIXELS = (
            None  # Pillow only warns at its limit; ours is checked before anything is decoded
        )

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().ravel()
        try:
            pixels = np.stack([self._tensor(file) for file in files])
        except PictureError as error:
            refusal = pb_utils.TritonError(f"input 'image': {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        return pb_utils.InferenceResponse([pb_utils.Tensor("pixels", pixels)])

    def _tensor(self, file):
        picture = decode(file, self._max_bytes, self._max_pixels)
        height, width = picture.shape[:2]
        side = round(CROP * min(height, width))
        left, top = (width - side) // 2, (height - side) // 2
        cut = resize(picture, (SIZE, SIZE), "bicubic", box=(left, top, left + side, top + side))
        return normalise(cut, mean=127, scale=128)
