"""A JPEG file to the tensor EfficientNet-Lite0 expects: its middle, 224 x 224, as (value - 127) / 128."""

import nvidia.dali.fn as fn
from nvidia.dali import pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@pipeline_def(batch_size=8, num_threads=4, device_id=None, output_dtype=types.FLOAT, output_ndim=3)
def pipeline():
    encoded = fn.external_source(name="jpeg", device="cpu", dtype=types.UINT8, ndim=1)
    pictures = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    pictures = fn.resize(pictures, resize_shorter=256, interp_type=types.INTERP_CUBIC)
    return fn.crop_mirror_normalize(
        pictures, crop=(224, 224), dtype=types.FLOAT, output_layout="CHW", mean=[127.0] * 3, std=[128.0] * 3
    )
