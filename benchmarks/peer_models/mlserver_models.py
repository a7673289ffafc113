"""`identity` and `simple` as MLServer runtimes."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Identity(MLModel):  # type: ignore[misc]  # not installed here
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        output = ResponseOutput(
            name="OUTPUT0",
            shape=given.shape,
            datatype=given.datatype,
            data=given.data,
            parameters=given.parameters,
        )
        return InferenceResponse(model_name=self.name, outputs=[output])


class Simple(MLModel):  # type: ignore[misc]
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        left, right = (np.asarray(NumpyCodec.decode_input(given)) for given in payload.inputs)
        outputs = {"OUTPUT0": left + right, "OUTPUT1": left - right}
        encoded = [NumpyCodec.encode_output(name, array) for name, array in outputs.items()]
        return InferenceResponse(model_name=self.name, outputs=encoded)
