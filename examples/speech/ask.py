"""Asks the model `speech_to_text` what is said in WAV files.

python examples/speech/ask.py FILE.wav ...
"""

import argparse
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
    for file in options.files:
        wav = triton.InferInput("wav", [1], "BYTES")
        wav.set_data_from_numpy(np.array([file.read_bytes()], object))
        (text,) = client.infer("speech_to_text", [wav]).as_numpy("text")
        print(f"{file.name}: {text.decode()}")


if __name__ == "__main__":
    main()
