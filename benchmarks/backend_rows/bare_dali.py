"""DALI alone: writes a pipeline into a folder, and runs it for each line of its input.

python bare_dali.py FOLDER, where FOLDER has JPEG files, which are one batch.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali as dali
import nvidia.dali.fn as fn


@dali.pipeline_def(  # type: ignore[untyped-decorator]
    batch_size=8, num_threads=1, device_id=None, output_dtype=dali.types.FLOAT, output_ndim=3
)
def pictures() -> Any:
    """Return pictures as a classifier wants them: decoded, resized, normalised."""
    decoded = fn.decoders.image(
        fn.external_source(name="ENCODED", device="cpu", dtype=dali.types.UINT8, ndim=1), device="cpu"
    )
    resized = fn.resize(decoded, resize_x=224, resize_y=224)
    return fn.crop_mirror_normalize(
        resized, dtype=dali.types.FLOAT, output_layout="CHW", mean=[127.0] * 3, std=[128.0] * 3
    )


def prepared(folder: Path) -> Callable[[], Any]:
    """Write the pipeline; return a call that runs it on the folder's pictures, and returns their pixels."""
    (folder / "1").mkdir()
    pictures().serialize(filename=str(folder / "1" / "model.dali"))
    encoded = [np.fromfile(path, np.uint8) for path in sorted(folder.glob("*.jpg"))]
    pipeline = pictures(exec_async=False, exec_pipelined=False, prefetch_queue_depth=1)

    def call() -> Any:
        return pipeline.run(ENCODED=encoded)[0].as_array()

    call()
    return call


def main(folder: Path) -> None:
    """Answer each line by an empty one, when the batch has run."""
    call = prepared(folder)
    print(flush=True)
    for _ in sys.stdin:
        call()
        print(flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
