"""Generation by OpenVINO."""

import backends.openvino  # noqa: F401  # keeps openvino-telemetry from being imported
