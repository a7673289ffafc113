"""Writes DALI models into a directory, with inputs and DALI's own answers; runs where DALI is."""

import sys
from pathlib import Path

import numpy as np
import nvidia.dali.fn as fn
from nvidia.dali import pipeline_def, types

PICTURES = """
import nvidia.dali.fn as fn
from nvidia.dali import pipeline_def, types
from nvidia.dali.plugin.triton import autoserialize

@autoserialize
@pipeline_def(batch_size=8, num_threads=4, device_id=None, output_dtype=types.FLOAT, output_ndim=3)
def pipeline():
    encoded = fn.external_source(name="ENCODED", device="cpu", dtype=types.UINT8, ndim=1)
    pictures = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    pictures = fn.resize(pictures, resize_x=32, resize_y=32)
    return fn.crop_mirror_normalize(
        pictures, dtype=types.FLOAT, output_layout="CHW", mean=[128.0] * 3, std=[64.0] * 3
    )
"""
TWICE = (
    PICTURES
    + "\n\n@autoserialize\n@pipeline_def(batch_size=1, num_threads=1, device_id=None)\n"
    + ('def another():\n    return fn.external_source(name="X", device="cpu")\n')
)


@pipeline_def(  # type: ignore[untyped-decorator]
    batch_size=4, num_threads=1, device_id=None, output_dtype=[types.INT32, None], output_ndim=[1, 1]
)
def numbers() -> object:
    """Return the sum of two vectors and the double of the first."""
    a = fn.external_source(name="A", device="cpu", dtype=types.INT32, ndim=1)
    b = fn.external_source(name="B", device="cpu", dtype=types.INT32)
    return a + b, a * 2.0


@pipeline_def(  # type: ignore[untyped-decorator]
    batch_size=4, num_threads=1, device_id=None, output_dtype=types.INT32, output_ndim=2
)
def frames() -> object:
    """Return each sample, whose outer axis is one of frames."""
    return fn.copy(fn.external_source(name="X", device="cpu", dtype=types.INT32, ndim=2), name="FRAMES")


def main(root: Path) -> None:
    """Write `pictures`, `twice`, `numbers` and `frames`; answers of DALI for the pictures in `root`."""
    for name, text in (("pictures", PICTURES), ("twice", TWICE)):
        version(root, name).joinpath("dali.py").write_text(text)
    for name, pipeline in (("numbers", numbers()), ("frames", frames())):
        pipeline.serialize(filename=str(version(root, name) / "model.dali"))
    encoded = [np.fromfile(path, np.uint8) for path in sorted(root.glob("*.jpg"))]
    module: dict[str, object] = {}
    exec(PICTURES, module)  # the pipeline of the file, which is ours
    pipeline = module["pipeline"](exec_pipelined=False, exec_async=False)  # type: ignore[operator]
    np.save(root / "expected.npy", pipeline.run(ENCODED=encoded)[0].as_array())


def version(root: Path, name: str) -> Path:
    """Make a model's first version."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]))
