"""Faces in a JPEG or PNG file. The network is another model, `centerface`, which this one calls (BLS)."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

from nereid_client.vision import Detections, PictureError, decode, letterbox, nms, normalise

SIZE = 640, 640
CELL = 4  # pixels
MAPS = ["heatmap", "scale", "offset", "landmarks"]


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self._max_bytes = int(parameters["max_bytes"]["string_value"])
        self._max_pixels = int(parameters["max_pixels"]["string_value"])
        self._score_threshold = float(parameters["score_threshold"]["string_value"])
        self._iou_threshold = float(parameters["iou_threshold"]["string_value"])
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
        inside, place = letterbox(picture, SIZE, fill=0)
        pixels = pb_utils.Tensor("pixels", normalise(inside, scale=1)[np.newaxis])
        request = pb_utils.InferenceRequest(
            model_name="centerface", requested_output_names=MAPS, inputs=[pixels]
        )
        response = request.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        maps = [pb_utils.get_output_tensor_by_name(response, name).as_numpy()[0] for name in MAPS]
        found, landmarks = faces(*maps, self._score_threshold, self._iou_threshold)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("boxes", place.to_picture(found.boxes)),
                pb_utils.Tensor("scores", found.scores),
                pb_utils.Tensor("classes", found.classes),
                pb_utils.Tensor("landmarks", place.to_picture(landmarks)),
            ]
        )


def faces(heatmap, scale, offset, landmarks, score_threshold, iou_threshold):
    """Return detections, and landmarks [n, 5, 2], in pixels of the network's input.

    The maps are [channels, height, width] of cells; in theirs y comes before x. A cell's box has the size
    e^scale, in cells, and its middle at cell + offset + 0.5; landmarks are shares of the box.
    """
    y, x = np.nonzero(heatmap[0] >= score_threshold)
    scores = heatmap[0, y, x]
    sizes = np.exp(scale[::-1, y, x].T) * CELL
    corners = (np.stack([x, y], axis=1) + offset[::-1, y, x].T + 0.5) * CELL - sizes / 2
    boxes = np.concatenate([corners, corners + sizes], axis=1).astype(np.float32)
    shares = landmarks[:, y, x].T.reshape(-1, 5, 2)[..., ::-1]
    points = corners[:, np.newaxis] + shares * sizes[:, np.newaxis]
    kept = nms(boxes, scores, iou_threshold=iou_threshold)
    found = Detections(boxes[kept], scores[kept], np.zeros(len(kept), np.int64))
    return found, points[kept].astype(np.float32)
