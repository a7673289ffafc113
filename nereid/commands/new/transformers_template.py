"""Answers by a pipeline of transformers, from the files in the folder `model`; no code of theirs is executed.

Written by `nereid new`. The parameter `task` of the configuration names the pipeline.
"""

import io
import json
import os
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def texts(values: Any) -> Any:
    return [value.decode() for value in values]


def images(values: Any) -> Any:
    from PIL import Image

    return [Image.open(io.BytesIO(value)).convert("RGB") for value in values]


def labels(pipeline: Any, values: Any) -> Any:
    """Return the best label of each value, and its score."""
    found = [each[0] if isinstance(each, list) else each for each in pipeline(values, top_k=1)]
    names = np.array([[each["label"].encode()] for each in found], object)
    return {"LABEL": names, "SCORE": np.array([[each["score"]] for each in found], np.float32)}


def entities(pipeline: Any, values: Any) -> Any:
    """Return the entities of each text as JSON: a list with entity_group, score, word, start and end."""
    found = [json.dumps(each, default=float).encode() for each in pipeline(values, batch_size=len(values))]
    return {"ENTITIES": np.array([[each] for each in found], object)}


def embeddings(pipeline: Any, values: Any) -> Any:
    """Return the mean of the last hidden states over the tokens of each text."""
    import torch

    encoded = pipeline.tokenizer(values, padding=True, truncation=True, return_tensors="pt")
    encoded = encoded.to(pipeline.device)
    with torch.inference_mode():
        hidden = pipeline.model(**encoded)[0].float()
    mask = encoded["attention_mask"][..., None]
    return {"EMBEDDING": ((hidden * mask).sum(1) / mask.sum(1)).cpu().numpy()}


TASKS: Any = {
    "text-classification": (texts, labels, {"truncation": True}),
    "image-classification": (images, labels, {}),
    "token-classification": (texts, entities, {"aggregation_strategy": "simple"}),
    "feature-extraction": (texts, embeddings, {}),
}


class TritonPythonModel:
    """The model."""

    def initialize(self, args: Any) -> None:
        from transformers import pipeline

        config = json.loads(args["model_config"])
        task = config["parameters"]["task"]["string_value"]
        self.input = config["input"][0]["name"]
        self.read, self.answer, options = TASKS[task]
        device = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else "cpu"
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model")
        self.pipeline = pipeline(task, model=folder, device=device, trust_remote_code=False, **options)

    def execute(self, requests: Any) -> Any:
        """Answer the rows of all requests at once."""
        arrays = [pb_utils.get_input_tensor_by_name(each, self.input).as_numpy() for each in requests]
        ends = np.cumsum([len(array) for array in arrays])[:-1]
        found = self.answer(self.pipeline, self.read(np.concatenate(arrays).reshape(-1)))
        parts = {name: np.split(array, ends) for name, array in found.items()}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, own[place]) for name, own in parts.items()])
            for place in range(len(requests))
        ]
