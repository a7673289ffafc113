"""Predicts by a scikit-learn, XGBoost or LightGBM model, as MLServer's runtimes do.

Written by `nereid migrate mlserver`, and by `nereid new` for a pickle of scikit-learn.
"""

import json
import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class Loaded:
    """A model.

    Attributes:
        functions: by the names of outputs.
        width: the number of features, 0 if the model does not know it.
        names: of the outputs, where the configuration declares none.
    """

    def __init__(self, parameters: Any) -> None:
        directory = os.path.dirname(os.path.abspath(__file__))
        path = os.path.join(directory, parameters["file"]["string_value"])
        model, width = load(parameters["kind"]["string_value"], path)
        self.functions = {name: getattr(model, name, None) for name in OUTPUTS}
        self.width = int(width or 0)
        self.default = parameters.get("predict_fn", {}).get("string_value") or "predict"
        wanted = parameters.get("outputs", {}).get("string_value") or self.default
        self.names = [name for name in wanted.split(",") if self.functions.get(name)] or [self.default]

    def predict(self, name: Any, array: Any) -> Any:
        """Return an output of at least two dimensions."""
        function = self.functions[name if name in OUTPUTS else self.default]
        if function is None:
            raise pb_utils.TritonModelException(f"the model has no '{name}'")
        found = np.asarray(function(array))
        return found[:, None] if found.ndim == 1 else found


OUTPUTS = ("predict", "predict_proba", "transform")


def load(kind: Any, path: Any) -> Any:
    """Return a model and its number of features."""
    if kind == "sklearn":
        import joblib

        model = joblib.load(path)
        return model, getattr(model, "n_features_in_", 0)
    if kind == "xgboost":
        import xgboost

        try:
            model = xgboost.XGBRegressor()
            model.load_model(path)
        except TypeError:  # the file says that it is a classifier
            model = xgboost.XGBClassifier()
            model.load_model(path)
        return model, model.get_booster().num_features()
    import lightgbm

    model = lightgbm.Booster(model_file=path)
    return model, model.num_feature()


def data_type(dtype: Any) -> Any:
    """Return the name of a NumPy type in a configuration."""
    names = {"f": "FP", "i": "INT", "u": "UINT"}
    return f"TYPE_{names[dtype.kind]}{8 * dtype.itemsize}" if dtype.kind in names else "TYPE_STRING"


class TritonPythonModel:
    """The model."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Complete what MLServer's settings do not declare: of the output, by a prediction of zeros."""
        known = config.as_dict()
        if known["input"] and known["output"]:
            return config
        loaded = Loaded(known["parameters"])
        rows = [] if known["max_batch_size"] else [-1]
        if not known["input"]:
            config.add_input(
                {"name": "predict", "data_type": "TYPE_FP32", "dims": [*rows, loaded.width or -1]}
            )
        for name in [] if known["output"] else loaded.names:
            try:
                found = loaded.predict(name, np.zeros((1, loaded.width), np.float32))
            except Exception as error:
                raise pb_utils.TritonModelException(f"declare the output in config.pbtxt: {error}") from error
            tensor = {"name": name, "data_type": data_type(found.dtype)}
            config.add_output({**tensor, "dims": [*rows, *found.shape[1:]]})
        return config

    def initialize(self, args: Any) -> None:
        config = json.loads(args["model_config"])
        self.loaded = Loaded(config["parameters"])
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
        wanted = request.requested_output_names() or self.outputs
        return pb_utils.InferenceResponse(
            [self.output(name, array) for name in self.outputs if name in wanted]
        )

    def output(self, name: Any, array: Any) -> Any:
        found = self.loaded.predict(name, array)
        declared = np.dtype(self.outputs[name])
        if not np.can_cast(found.dtype, declared, "same_kind"):
            raise pb_utils.TritonModelException(
                f"the model answers with {found.dtype}: declare another data type of '{name}' in config.pbtxt"
            )
        return pb_utils.Tensor(name, found.astype(declared))
