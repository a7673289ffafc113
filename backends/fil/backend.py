"""Backend of decision trees: XGBoost, LightGBM and what treelite imports, such as scikit-learn's forests.

The name, the tensors and the parameters are those of Triton's fil_backend (Forest Inference Library). Trees
run on the CPU; treelite and ONNX Runtime release the GIL while they do.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg, unavailable
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.cpus import threads_per_instance
from backends.fil.forest import BINARY, MULTI_CLASS, Array, Damaged, read_forest
from backends.fil.formats import file_name, model_type
from backends.fil.predictors import Predictor, fastest
from backends.fil.reading import read_model
from backends.fil.settings import read_settings, warn_of_parameters
from backends.fil.shap import Explainer
from backends.fil.tensors import INPUT, OUTPUT, SHAP, check, complete
from backends.fil.zeros import MissingZeros, takes_zeros_for_missing

if TYPE_CHECKING:
    from backends.onnxruntime.bound import BoundRuns

logger = logging.getLogger(__name__)

_LEAF_VECTORS: Final = "identity_multiclass"


class _Trees:
    """A model's trees, read once, for all its instances."""

    def __init__(self, model: Model) -> None:
        self.settings = read_settings(model)
        path, kind = _find(model)
        self.model = read_model(model.name, path, kind, self.settings.allow_unknown_field)
        try:
            self.forest = read_forest(self.model)
        except Damaged as fault:
            raise invalid_arg(f"unable to load model '{model.name}': '{path}' is damaged: {fault}") from None
        zeros = kind == "lightgbm" and takes_zeros_for_missing(path.read_bytes())
        self.prepared = MissingZeros(self.forest) if zeros else None
        known = self.settings.is_classifier
        self.is_classifier = self.forest.task in (BINARY, MULTI_CLASS) if known is None else known
        self._postprocess()

    def _postprocess(self) -> None:
        """Set the postprocessor of probabilities, as Triton does (src/tl_model.h).

        Triton takes the leaves of XGBoost's `multi_output_tree` for probabilities too; they are margins.
        """
        if self.settings.predict_proba and self.forest.task == MULTI_CLASS:
            has_probabilities = self.forest.values.shape[1] > 1 and self.forest.postprocessor != "softmax"
            name = _LEAF_VECTORS if has_probabilities else "softmax"
            self.model.get_header_accessor().set_field("postprocessor", name)
            self.forest = self.forest._replace(postprocessor=name)

    @property
    def widths(self) -> dict[str, tuple[int, ...]]:
        """Numbers of values for a row that an output may have."""
        classes = self.forest.classes
        answer: tuple[int, ...]
        if not self.is_classifier:
            answer = (classes,)
        elif not self.settings.predict_proba:
            answer = (1,)
        else:
            answer = (1, 2) if classes == 1 else (classes,)
        return {OUTPUT: answer, SHAP: (classes * (self.forest.features + 1),)}


class _Loaded:
    """Trees ready to execute, and the form of their answers."""

    def __init__(self, model: Model, trees: _Trees) -> None:
        settings, forest = trees.settings, trees.forest
        check(model.config, forest, trees.widths)
        warn_of_parameters(model)
        self.features = forest.features
        self.prepared = trees.prepared
        self.shapes = {output.name: output.expected for output in model.signature.outputs}
        threads = settings.threads or threads_per_instance(model.config)
        self.predict: Predictor = fastest(model.name, trees.model, forest, threads)
        self.explain = Explainer(trees.model, forest) if SHAP in self.shapes else None
        self.answer = _answer(trees, self.shapes.get(OUTPUT, (1,)))
        self.is_plain = self.answer is None and self.shapes.get(OUTPUT) == (-1, forest.classes)
        self.bound: BoundRuns | None = None


class FilBackend(ArrayBackend):
    """Backend `fil`; the instances of a model share its trees."""

    def model_initialize(self, model: Model) -> None:
        model.state = _Loaded(model, _trees(model))

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> _Loaded:
        if instance.kind == "GPU":
            logger.warning("instance '%s' has kind KIND_GPU; trees run on the CPU here", instance.name)
        loaded: _Loaded = copy(instance.model.state)
        signature = instance.model.signature
        if loaded.is_plain and loaded.explain is None and loaded.prepared is None and signature.is_plain:
            loaded.bound = loaded.predict.bound(signature)
        if loaded.bound is not None:
            instance.answer = loaded.bound.answer
        return loaded

    def execute(
        self, loaded: _Loaded, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        rows = _rows(inputs[INPUT], loaded.features)
        if loaded.prepared is not None:
            rows = loaded.prepared(rows)
        found: dict[str, Array] = {}
        if OUTPUT in outputs:
            answer = loaded.predict(rows)
            found[OUTPUT] = answer if loaded.is_plain else _formed(loaded, answer)
        if SHAP in outputs and loaded.explain is not None:
            found[SHAP] = _shaped(loaded.explain(rows), loaded.shapes[SHAP])
        if loaded.bound is not None and rows is inputs[INPUT]:
            loaded.bound.learn(inputs, found)
        return found

    def runs_on_event_loop(self, instance: Instance) -> bool:
        return True

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return True

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        trees = _trees(model)
        model.state = trees
        return complete(model, trees.forest, trees.settings, trees.is_classifier)


def _trees(model: Model) -> _Trees:
    """Return the trees that the completion of the configuration has read, or read them."""
    return model.state if isinstance(model.state, _Trees) else _Trees(model)


def _find(model: Model) -> tuple[Path, str]:
    """Return a model's file and its format."""
    folder = model.version_directory
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    path = model.artifact("", file_name(model.config, names))
    if not path.is_file():
        raise unavailable(f"unable to find '{path}' for model instance '{model.name}'")
    return path, model_type(model.config, names)


def _formed(loaded: _Loaded, answers: Array) -> Array:
    """Return `output__0` as the configuration wants it."""
    return _shaped(answers if loaded.answer is None else loaded.answer(answers), loaded.shapes[OUTPUT])


def _answer(trees: _Trees, expected: tuple[int, ...]) -> Callable[[Array], Array] | None:
    """Return what makes `output__0` of answers, float32[n, classes]; None if that is the same."""
    settings, classes = trees.settings, trees.forest.classes
    if trees.is_classifier and not settings.predict_proba:
        return best_class if classes > 1 else partial(above, threshold=np.float32(settings.threshold))
    if trees.is_classifier and classes == 1 and expected[-1] != 1:
        return both_classes
    return None


def best_class(answers: Array) -> Array:
    """Return the class of each row's largest value, float32[n, 1]; 0 if none is above 0, as Triton does."""
    best: Array = answers.argmax(axis=1)
    best[~(answers > 0).any(axis=1)] = 0
    return best.astype(np.float32)[:, None]


def above(answers: Array, threshold: np.float32) -> Array:
    """Return 1 for each probability above a threshold, else 0."""
    return (answers > threshold).astype(np.float32)


def both_classes(answers: Array) -> Array:
    """Return the probabilities of both classes, float32[n, 2], for those of class 1."""
    return np.concatenate([1 - answers, answers], axis=1)


def _rows(array: Array, features: int) -> Array:
    """Return an input as float32[n, features].

    Raises:
        InferError: INVALID_ARG for another number of features, where the configuration leaves it open.
    """
    if array.ndim == 2 and array.shape[1] == features and array.flags.c_contiguous:
        return array
    count = len(array) if array.ndim > 1 else 1
    if array.size != count * features:
        raise invalid_arg(f"input '{INPUT}' has shape {list(array.shape)}, but a row has {features} features")
    return np.ascontiguousarray(array.reshape(count, features))


def _shaped(array: Array, expected: tuple[int, ...]) -> Array:
    """Return an output in the shape of its configuration, which may leave open the number of rows."""
    if expected[0] == -1 and array.shape[1:] == expected[1:]:
        return array
    return array.reshape(expected) if expected.count(-1) < 2 else array
