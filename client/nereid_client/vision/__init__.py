"""Pre- and post-processing of pictures, for Python models and clients; needs numpy, and Pillow to decode.

Pictures are UINT8 [height, width, 3] in RGB; boxes are (left, top, right, bottom) in pixels, FP32 [n, 4].
docs/use/vision.md says which functions take tensors of PyTorch as well, and compute on their device.
"""

from nereid_client.vision.boxes import Detections, iou, to_corners
from nereid_client.vision.classes import Ranked, top_k
from nereid_client.vision.letterbox import Letterbox, letterbox
from nereid_client.vision.masks import instance_masks
from nereid_client.vision.pictures import PictureError, decode, normalise, resize
from nereid_client.vision.suppression import nms
from nereid_client.vision.text import Reading, ctc_best_path
from nereid_client.vision.text_boxes import TextBoxes, text_boxes
from nereid_client.vision.yolo import (
    Keypoints,
    anchor_free_head,
    anchor_head,
    detect,
    detect_with_extras,
    keypoints,
)

__all__ = [
    "Detections",
    "Keypoints",
    "Letterbox",
    "PictureError",
    "Ranked",
    "Reading",
    "TextBoxes",
    "anchor_free_head",
    "anchor_head",
    "ctc_best_path",
    "decode",
    "detect",
    "detect_with_extras",
    "instance_masks",
    "iou",
    "keypoints",
    "letterbox",
    "nms",
    "normalise",
    "resize",
    "text_boxes",
    "to_corners",
    "top_k",
]
