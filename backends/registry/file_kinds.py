"""Recognises model files by name and first bytes, and says how each kind can be served.

People bring what their training has written; most of it is no file that a backend reads as it stands.
"""

import re
from collections.abc import Collection
from typing import Final

from app.core.installed.installation import install_command
from backends.description import BackendDescription
from backends.model_files import FileKind, ModelFile
from backends.registry.descriptions import described, descriptions

_PYTHON: Final = "load it in a Python model (1/model.py)"
_PICKLES: Final = (".pkl", ".pickle", ".joblib", ".sav", ".dill", ".cloudpickle")
_TORCH_ENDINGS: Final = (".pt", ".pth", ".torch")
_LEGACY_TORCH: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
"""`torch.save` before PyTorch 1.6: a pickle of a magic number comes first."""
_PICKLED: Final = re.compile(rb"\x80[\x02-\x05]")
_EXPORTED: Final = "torch.export.save(torch.export.export(model.eval(), (example,)), 'model.pt2')"
_SCRIPTED: Final = "torch.jit.trace(model.eval(), example).save('model.pt')"
_XGBOOST: Final = re.compile(rb'\{L\x00{7}\x07learner|\{\s*"learner"')
_BY_OPENVINO: Final = "name it in 'default_model_filename' of the configuration"
_TF2ONNX: Final = "python -m tf2onnx.convert"


def _pickled(file: ModelFile) -> bool:
    return _PICKLED.match(file.head or b"") is not None


def holds_aoti(file: ModelFile) -> bool:
    """Return whether a file is an archive of PyTorch with a compiled library in it."""
    return any("/data/aotinductor/" in member for member in file.members)


def holds_export(file: ModelFile) -> bool:
    """Return whether a file is an archive of PyTorch with an exported program, of this or an older form."""
    programs = any("/models/" in member and member.endswith(".json") for member in file.members)
    return programs or file.holds("serialized_exported_program.json")


def _torch_saved(file: ModelFile) -> bool:
    in_archive = file.holds("/data.pkl") and not file.holds("/constants.pkl")
    return in_archive or file.begins(_LEGACY_TORCH) or (_pickled(file) and file.ends(*_TORCH_ENDINGS))


def _safetensors(file: ModelFile) -> bool:
    head = file.head or b""
    header = head[5:8] == b"\0\0\0" and head[8:10] in (b'{"', b"{ ")  # behind its length, 8 bytes
    return header or file.ends(".safetensors")


PICKLE: Final = FileKind(
    "a pickle, as scikit-learn and joblib write it",
    "make a Python model of it: nereid new NAME --from FILE (its loads execute the pickle); or convert it: "
    "skl2onnx.to_onnx(model, X[:1], options={id(model): {'zipmap': False}}) (leave out 'options' for a "
    "regressor); treelite.sklearn.import_model(model).serialize('checkpoint.tl'), for the backend fil",
    lambda file: file.ends(*_PICKLES) or _pickled(file),
)
KINDS: Final = (
    FileKind(
        "a pointer of Git LFS, not the file itself",
        "run 'git lfs install && git lfs pull' where the repository was cloned",
        lambda file: file.begins(b"version https://git-lfs.github.com/spec/"),
    ),
    FileKind(
        "a web page, perhaps that of a login or an error",
        "download the file again",
        lambda file: (file.head or b"").lstrip().lower().startswith((b"<!doctype html", b"<html")),
    ),
    FileKind("empty", "copy the file again", lambda file: file.head == b""),
    FileKind(
        "a package of AOTInductor",
        "name it model.pt2",
        lambda file: holds_aoti(file) and not holds_export(file),
        name="aoti",
    ),
    FileKind(
        "a program of torch.export",
        "name it model.pt2",
        lambda file: holds_export(file) or (file.ends(".pt2") and not file.members),
        name="export",
    ),
    FileKind(
        "saved by torch.save, or a pickle: weights (a state_dict) or pickled classes, but no program",
        f"export it: {_EXPORTED}; or serve a state_dict as model.pt with the module's code beside it: "
        "a model.py that defines the torch.nn.Module, and 'runtime: \"model.py\"' in config.pbtxt",
        _torch_saved,
    ),
    FileKind(
        "TorchScript",
        "name it model.pt",
        lambda file: file.holds("/constants.pkl"),
        name="torchscript",
    ),
    FileKind(
        "a Keras model",
        "export a SavedModel: keras.models.load_model(FILE).export('model.savedmodel'), for the backend "
        f"'tensorflow'; or convert that: {_TF2ONNX} --saved-model model.savedmodel --output model.onnx",
        lambda file: file.ends(".keras", ".h5", ".hdf5") or file.begins(b"\x89HDF\r\n"),
    ),
    FileKind(
        "a TensorFlow SavedModel",
        "name its directory model.savedmodel",
        lambda file: file.ends(".savedmodel", "saved_model.pb") or file.holds("saved_model.pb"),
        name="saved_model",
    ),
    FileKind(
        "a TensorFlow Lite model",
        _BY_OPENVINO,
        lambda file: file.ends(".tflite") or (file.head or b"")[4:8] == b"TFL3",
        name="tflite",
    ),
    FileKind(
        "a TensorFlow graph",
        "name it model.graphdef and declare its inputs and outputs in config.pbtxt",
        lambda file: file.ends(".graphdef", ".pb"),
        name="tensorflow_graph",
    ),
    FileKind(
        "a GGUF file of llama.cpp",
        f"{_PYTHON} with llama-cpp-python",
        lambda file: file.ends(".gguf") or file.begins(b"GGUF"),
    ),
    FileKind(
        "of a model of transformers that does not generate text, such as a classifier or an encoder",
        "make a Python model of it: nereid new NAME --from FOLDER; or export it: optimum-cli export onnx "
        "--model FOLDER . (then serve model.onnx)",
        lambda file: file.architecture is not None and not file.architecture.generates,
    ),
    FileKind(
        "of a language model of transformers",
        "name its folder in 1/model.json ('.' for the version's directory itself) and write "
        "'backend: \"llm\"' into config.pbtxt",
        lambda file: file.architecture is not None,
        name="language_model",
    ),
    FileKind(
        "a safetensors file, which has weights but no program",
        "for a language model, put config.json and tokenizer.json beside it, the name of their folder into "
        "1/model.json, and 'backend: \"llm\"' into config.pbtxt; or build the model in Python, load the "
        f"weights, and export it: {_EXPORTED}",
        _safetensors,
    ),
    FileKind(
        "a C++ backend, written for Triton",
        'name it in config.pbtxt, backend: "NAME" for libtriton_NAME.so',
        lambda file: re.fullmatch(r"libtriton_.+\.so", file.name) is not None,
    ),
    FileKind("an ONNX model", "name it model.onnx", lambda file: file.ends(".onnx"), name="onnx"),
    FileKind(
        "a TensorRT engine, which runs only with the version of TensorRT and the kind of GPU that built it",
        "name it model.plan",
        lambda file: file.ends(".engine", ".trt", ".plan") or file.begins(b"ftrt", b"ptrt"),
        name="tensorrt",
    ),
    FileKind(
        "a LightGBM model",
        "name it model.txt",
        lambda file: file.ends(".lgb", ".lgbm") or file.begins(b"tree\nversion="),
        name="lightgbm",
    ),
    FileKind(
        "a CatBoost model",
        "convert it: CatBoost().load_model(FILE).save_model('model.onnx', format='onnx')",
        lambda file: file.ends(".cbm") or file.begins(b"CBM1"),
    ),
    FileKind(
        "an XGBoost model",
        "name it xgboost.json (xgboost.ubj for UBJSON, xgboost.model for the old binary format)",
        lambda file: file.ends(".ubj", ".xgb", ".bst") or _XGBOOST.match(file.head or b"") is not None,
        name="xgboost",
    ),
    FileKind(
        "a checkpoint of treelite",
        "name it checkpoint.tl",
        lambda file: file.ends(".tl"),
        name="treelite",
    ),
    PICKLE,
    FileKind(
        "an OpenVINO model",
        "name it model.xml, with its weights beside it as model.bin",
        lambda file: file.ends(".xml") or file.begins(b"<?xml"),
        name="openvino",
    ),
    FileKind(
        "a Core ML model, which runs on Apple's devices only",
        "export ONNX from the framework that it came from",
        lambda file: file.ends(".mlmodel", ".mlpackage", ".mlmodelc"),
    ),
    FileKind(
        "a Paddle model",
        _BY_OPENVINO,
        lambda file: file.ends(".pdmodel", ".pdiparams", ".pdparams", "inference.json"),
        name="paddle",
    ),
    FileKind(
        "a DALI pipeline",
        "name it model.dali if it is serialized, dali.py if it is Python",
        lambda file: file.ends(".dali") or file.name == "dali.py",
        name="dali",
    ),
    FileKind(
        "a library, perhaps a model that Apache TVM has compiled",
        "name it model.so and declare its inputs and outputs in config.pbtxt",
        lambda file: file.ends(".so"),
        name="tvm",
    ),
    FileKind(
        "a TorchServe archive",
        "unpack it (it is a ZIP archive) and serve the TorchScript in it, or its handler as a Python model",
        lambda file: file.ends(".mar"),
    ),
    FileKind(
        "a PyTorch file",
        f"save TorchScript as model.pt: {_SCRIPTED}; or export it: {_EXPORTED}",
        lambda file: file.ends(*_TORCH_ENDINGS),
        name="pytorch",
    ),
    FileKind(
        "a PMML model",
        f"{_PYTHON} with pypmml",
        lambda file: file.ends(".pmml"),
    ),
    FileKind(
        "an R object",
        "export ONNX or PMML from R",
        lambda file: file.ends(".rds", ".rdata"),
    ),
)
"""In the order in which they are tried: content says more than a name."""

_DESCRIBED: Final = 3


def kind_of(file: ModelFile) -> FileKind | None:
    """Return what a file is; None when nothing is known about it."""
    own = (kind for backend in descriptions() for kind in backend.kinds if isinstance(kind, FileKind))
    return next((kind for kind in (*KINDS, *own) if kind.matches(file)), None)


def server_of(kind: FileKind) -> BackendDescription | None:
    """Return the backend that serves a kind of file; None for none."""
    return next((backend for backend in descriptions() if _serves(backend, kind)), None)


def foreign(file: ModelFile, backend: str) -> str:
    """Return why a backend cannot read a file, by its content alone; "" if nothing says so.

    Nothing says so of a backend whose description names no kinds of files.
    """
    own = described(backend)
    kind = kind_of(file._replace(name="")) if own.kinds else None
    if kind is None or _serves(own, kind):
        return ""
    named = kind_of(file) or kind  # a pickle that is called model.pt was meant to be PyTorch's
    return _sentence(file, kind if _serves(own, named) else named)


def describe(files: Collection[ModelFile]) -> str:
    """Return a sentence for each file of which something is known: what it is and how to serve it."""
    found = [(file, kind) for file in sorted(files, key=lambda file: file.name) if (kind := kind_of(file))]
    return " ".join(_sentence(file, kind) for file, kind in found[:_DESCRIBED])


def _serves(backend: BackendDescription, kind: FileKind) -> bool:
    return kind in backend.kinds or kind.name in backend.kinds


def _sentence(file: ModelFile, kind: FileKind) -> str:
    advice = kind.advice[0].upper() + kind.advice[1:]
    return f"'{file.name}' is {kind.title}. {advice}{_served_by(server_of(kind))}."


def _served_by(backend: BackendDescription | None) -> str:
    if backend is None:
        return ""
    command = install_command(backend.extra) if backend.extra else f"nereid backends install {backend.name}"
    install = f" (to install it: {command})" if backend.extra or backend.packaged else ""
    return f", which the backend '{backend.name}' serves{install}"
