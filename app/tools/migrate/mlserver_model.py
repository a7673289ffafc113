"""Predicts by a scikit-learn, XGBoost or LightGBM model, as MLServer's runtimes do.

Written by `nereid migrate mlserver`.
"""

import json
import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def load(kind: Any, path: Any) -> Any:
    """Return the functions by the names of outputs."""
    if kind == "sklearn":
        import joblib

        model = joblib.load(path)
        return {name: getattr(model, name, None) for name in ("predict", "predict_proba", "transform")}
    if kind == "xgboost":
        import xgboost

        try:
            model = xgboost.XGBRegressor()
            model.load_model(path)
        except TypeError:  # the file says that it is a classifier
            model = xgboost.XGBClassifier()
            model.load_model(path)
        return {name: getattr(model, name, None) for name in ("predict", "predict_proba")}
    import lightgbm

    return {"predict": lightgbm.Booster(model_file=path).predict}


class TritonPythonModel:
    """The model."""

    def initialize(self, args: Any) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        directory = os.path.dirname(os.path.abspath(__file__))
        self.functions = load(parameters["kind"], os.path.join(directory, parameters["file"]))
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = {
            tensor["name"]: pb_utils.triton_string_to_numpy(tensor["data_type"])
            for tensor in config["output"]
        }

    def execute(self, requests: Any) -> Any:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        columns = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs]
        array = columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)
        wanted = request.requested_output_names() or list(self.outputs)
        return pb_utils.InferenceResponse([self.output(name, array) for name in wanted])

    def output(self, name: Any, array: Any) -> Any:
        function = self.functions.get(name) or self.functions["predict"]
        found = np.asarray(function(array))
        found = found[:, None] if found.ndim == 1 else found
        declared = np.dtype(self.outputs[name])
        if not np.can_cast(found.dtype, declared, "same_kind"):
            raise pb_utils.TritonModelException(
                f"the model answers with {found.dtype}: declare another data type of '{name}' in config.pbtxt"
            )
        return pb_utils.Tensor(name, found.astype(declared))
