"""Models that OpenVINO executes."""

import sys

# The package openvino-telemetry, on which OpenVINO depends, has `import openvino` report itself to a service
# of statistics on the internet, and write an identifier into the home directory. Without it, OpenVINO does
# neither.
if "openvino" not in sys.modules:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
