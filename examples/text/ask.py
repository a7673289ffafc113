"""Asks the model `minilm` how alike sentences are.

python examples/text/ask.py [SENTENCE ...]
"""

import argparse
from typing import Final

import numpy as np
import tritonclient.grpc as triton

SENTENCES: Final = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


def main() -> None:
    """Print a line for each sentence: how alike it is to each, and itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    parser.add_argument("--server", default="localhost:8001")
    options = parser.parse_args()
    text = triton.InferInput("text", [len(options.sentences), 1], "BYTES")
    text.set_data_from_numpy(np.array([[one.encode()] for one in options.sentences], object))
    vectors = triton.InferenceServerClient(options.server).infer("minilm", [text]).as_numpy("embedding")
    for sentence, row in zip(options.sentences, vectors @ vectors.T, strict=True):
        print("  ".join([*(f"{value:.3f}" for value in row), sentence]))


if __name__ == "__main__":
    main()
