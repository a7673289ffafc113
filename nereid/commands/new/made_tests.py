"""The test of a model that `nereid new` makes, as text. Pure."""

from __future__ import annotations

from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

_ZEROS: Final = '''"""A test of {name}: pytest {file}"""

from pathlib import Path

import numpy as np
from tritonclient.utils import triton_to_np_dtype

from nereid.testing import load_model


def zeros(config):
    """Return a row of zeros for each input; put what the model is made for in their place."""
    rows = [1] if config["max_batch_size"] else []
    found = {{}}
    for tensor in config["input"]:
        shape = [*rows, *(max(int(dim), 1) for dim in tensor["dims"])]
        dtype = triton_to_np_dtype(tensor["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES"))
        found[tensor["name"]] = np.full(shape, b"") if dtype is np.object_ else np.zeros(shape, dtype)
    return found


def test_answers():
    with load_model(Path(__file__).parent) as model:
        found = model.infer(zeros(model.config))
        assert set(found) == {{tensor["name"] for tensor in model.config["output"]}}
        assert all(len(array) for array in found.values())
'''
_KNOWN: Final = '''"""A test of {name}: pytest {file}"""

from pathlib import Path

import numpy as np

from nereid.testing import load_model


def test_answers():
    with load_model(Path(__file__).parent) as model:
{lines}
'''
_DOUBLES: Final = (
    "found = model(INPUT=np.array([[1.0, 2.5]], np.float32))",
    'assert found["OUTPUT"].tolist() == [[2.0, 5.0]]',
)
_LABELS: Final = (
    "found = model({input})",
    'assert found["LABEL"].shape == ({rows}, 1) and all(label for label in found["LABEL"].reshape(-1))',
    'assert np.all((found["SCORE"] > 0) & (found["SCORE"] <= 1))',
)
_TEXTS: Final = 'TEXT=[["This is fine."], ["Nereid is a moon of Neptune, and this is a longer text."]]'
_BY_TASK: Final = {
    "text-classification": tuple(line.format(input=_TEXTS, rows=2) for line in _LABELS),
    "image-classification": (
        "image = BytesIO()",
        'Image.new("RGB", (64, 64)).save(image, "PNG")',
        *(line.format(input="IMAGE=np.array([[image.getvalue()]], object)", rows=1) for line in _LABELS),
    ),
    "token-classification": (
        f"found = model({_TEXTS})",
        'assert all(isinstance(json.loads(text), list) for text in found["ENTITIES"].reshape(-1))',
    ),
    "feature-extraction": (
        f"found = model({_TEXTS})",
        'assert found["EMBEDDING"].shape[0] == 2 and np.all(np.isfinite(found["EMBEDDING"]))',
    ),
}
_IMPORTS: Final = {
    "image-classification": ("from io import BytesIO\n", "from PIL import Image\n"),
    "token-classification": ("import json\n", ""),
}


def file_of(name: str) -> str:
    """Return the name of the test's file."""
    return f"test_{''.join(each if each.isalnum() else '_' for each in name)}.py"


def text_of(config: mc.ModelConfig, from_nothing: bool) -> str:
    """Return a test of a model that has just been made."""
    about = {"name": config.name, "file": file_of(config.name)}
    task = config.parameters["task"].string_value if "task" in config.parameters else ""
    lines = _DOUBLES if from_nothing else _BY_TASK.get(task)
    if lines is None:
        return _ZEROS.format(**about)
    made = _KNOWN.format(**about, lines="\n".join(f"        {line}" for line in lines))
    first, third = _IMPORTS.get(task, ("", ""))
    made = made.replace("from pathlib", f"{first}from pathlib", 1)
    return made.replace("import numpy as np\n", f"import numpy as np\n{third}", 1)
