"""Backend of TensorFlow models."""

import os

# TensorFlow reads this when it is imported: without it, each process prints lines about its processor.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
