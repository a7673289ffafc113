"""Pre- and post-processing of pictures, for Python models and clients; needs numpy, and Pillow to decode.

Pictures are UINT8 [height, width, 3] in RGB; boxes are (left, top, right, bottom) in pixels, FP32 [n, 4].
"""

from nereid.vision.boxes import Detections, iou, nms, to_corners
from nereid.vision.classes import Ranked, top_k
from nereid.vision.letterbox import Letterbox, letterbox
from nereid.vision.pictures import PictureError, decode, normalise, resize
from nereid.vision.text import Reading, ctc_best_path
from nereid.vision.yolo import anchor_free_head, anchor_head, detect

__all__ = [
    "Detections",
    "Letterbox",
    "PictureError",
    "Ranked",
    "Reading",
    "anchor_free_head",
    "anchor_head",
    "ctc_best_path",
    "decode",
    "detect",
    "iou",
    "letterbox",
    "nms",
    "normalise",
    "resize",
    "to_corners",
    "top_k",
]
