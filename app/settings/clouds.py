"""Settings of tritonserver's protocols of cloud services, which this server does not have."""

from typing import Annotated as A

import msgspec

from app.settings.flags import Flag


class CloudSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Protocols of cloud services."""

    allow_sagemaker: A[bool, Flag("allow_sagemaker", "Serve SageMaker's protocol.", unused=True)] = False
    sagemaker_port: A[int, Flag("sagemaker_port", "Port for SageMaker.", unused=True, low=0, high=65535)] = (
        8080
    )
    sagemaker_safe_port_range: A[
        str,
        Flag(
            "sagemaker_safe_port_range",
            "FIRST-LAST, ports the other endpoints may use.",
            pair="-",
            unused=True,
        ),
    ] = ""
    allow_vertex_ai: A[bool, Flag("allow_vertex_ai", "Serve Vertex AI's protocol.", unused=True)] = False
    vertex_ai_port: A[int, Flag("vertex_ai_port", "Port for Vertex AI.", unused=True, low=0, high=65535)] = (
        8080
    )
    vertex_ai_default_model: A[
        str, Flag("vertex_ai_default_model", "Model of requests without a model name.", unused=True)
    ] = ""
