"""A JPEG or PNG file to its pixels, UINT8 [height, width, 3], and to what PP-OCR's text detection expects.

Detection takes FP32 [1, 3, height, width], `value / 127.5 - 1`, both sides multiples of 32.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

from nereid_client.vision import PictureError, decode, normalise, resize

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
            picture = decode(file, self._max_bytes, self._max_pixels)
        except PictureError as error:
            refusal = pb_utils.TritonError(f"input 'image': {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        scale = min(1, self._max_side / max(picture.shape[:2]))
        resized = resize(picture, [_multiple(side * scale) for side in picture.shape[:2]])
        pixels = normalise(resized, mean=127.5, scale=127.5)[np.newaxis]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("picture", picture), pb_utils.Tensor("pixels", pixels)]
        )


def _multiple(side):
    return max(STEP, round(side / STEP) * STEP)
