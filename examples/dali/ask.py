"""Asks the ensemble `classify_jpeg` what JPEG files show, all at once.

python examples/dali/ask.py FILE.jpg ...
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton


def main() -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--server", default="localhost:8001")
    options = parser.parse_args()
    client = triton.InferenceServerClient(options.server)

    def ask(file: Path) -> str:
        jpeg = np.fromfile(file, np.uint8)[None]
        given = triton.InferInput("jpeg", jpeg.shape, "UINT8")
        given.set_data_from_numpy(jpeg)
        wanted = triton.InferRequestedOutput("probabilities", class_count=1)
        (best,) = client.infer("classify_jpeg", [given], outputs=[wanted]).as_numpy("probabilities")[0]
        return f"{file.name}: {best.decode()}"

    with ThreadPoolExecutor(8) as threads:
        for line in threads.map(ask, options.files):
            print(line)


if __name__ == "__main__":
    main()
