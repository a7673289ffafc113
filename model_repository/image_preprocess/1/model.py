"""A JPEG or PNG file to the tensor EfficientNet-Lite0 expects.

The middle 7/8 of the shorter side is cut out as a square, resized to 224 x 224 (bicubic) and scaled to
(value - 127) / 128, as in the evaluation code the network was published with.
"""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps, UnidentifiedImageError

SIZE = 224
CROP = 224 / 256


class Refused(Exception):
    """A file this model will not decode; the text says why."""


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
        except Refused as error:
            refusal = pb_utils.TritonError(f"input 'image': {error}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refusal)
        return pb_utils.InferenceResponse([pb_utils.Tensor("pixels", pixels)])

    def _tensor(self, file):
        image = self._decode(file)
        side = round(CROP * min(image.size))
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        resized = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box=box)
        return (np.asarray(resized, np.float32).transpose(2, 0, 1) - 127) / 128

    def _decode(self, file):
        if len(file) > self._max_bytes:
            raise Refused(f"{len(file)} bytes exceed the limit of {self._max_bytes}")
        try:
            image = Image.open(io.BytesIO(file), formats=("JPEG", "PNG"))
            if image.width * image.height > self._max_pixels:
                raise Refused(f"{image.width} x {image.height} pixels exceed the limit of {self._max_pixels}")
            return _rgb(ImageOps.exif_transpose(image))
        except UnidentifiedImageError:
            raise Refused("expected a JPEG or PNG file") from None
        except Refused:
            raise
        except Exception as error:  # a damaged file makes decoders raise errors of every kind
            raise Refused(f"damaged file: {error}") from None


def _rgb(image):
    if image.mode.startswith("I"):  # 16 bits a pixel, which convert() would clip at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")
