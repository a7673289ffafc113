"""Files of trees that are damaged, foreign or hostile: a precise error, in bounded memory and time."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import treelite
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

from app.core.errors import ErrorCode, InferError
from backends.fil import reading
from backends.fil.forest import Damaged, read_forest
from backends.fil.formats import FILES, file_name, model_type, seems
from backends.fil.reading import read_model
from tests.unit.backend_harness import config


def stump() -> treelite.Model:
    """Two trees of a test and two leaves."""
    builder: Any = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(3, "kRegressor", False, 1, [1], (1, 1)),
        tree_annotation=TreeAnnotation(2, [0, 0], [0, 0]),
        postprocessor=PostProcessorFunc(name="identity"),
        base_scores=[0.0],
    )
    for feature in range(2):
        builder.start_tree()
        builder.start_node(0)
        builder.numerical_test(
            feature, 1.5, default_left=True, opname="<", left_child_key=1, right_child_key=2
        )
        builder.end_node()
        for leaf in (1, 2):
            builder.start_node(leaf)
            builder.leaf(float(leaf))
            builder.end_node()
        builder.end_tree()
    model: treelite.Model = builder.commit()
    return model


CHECKPOINT = stump().serialize_bytes()
XGBOOST_NAME = bytes(136) + struct.pack("<Q", 50_000_000_000)
LIGHTGBM_LEAVES = b"""tree
version=v4
num_class=1
num_tree_per_iteration=1
max_feature_idx=2
objective=regression

Tree=0
num_leaves=2000000000
num_cat=0
leaf_value=1

"""
BAD = {
    "truncated": ("treelite_checkpoint", CHECKPOINT[:300], ""),
    "last bytes missing": ("treelite_checkpoint", CHECKPOINT[:-20], "it is truncated: 20 bytes are missing."),
    "another": ("xgboost_json", b"tree\nversion=v4\n", "It seems to be of model_type 'lightgbm'."),
    "binary as text": ("xgboost_json", b"\xff" * 4096, "it is not a text file."),
    "empty": ("lightgbm", b"", "need max_feature_idx."),
    "deep": ("xgboost_json", b"[" * 1_000_000, "Parsing error at offset 1"),
    "deep objects": ("xgboost_ubj", b"{L\0\0\0\0\0\0\0\x07learner" * 200_000, "it is damaged, or no UBJSON."),
    "long name": ("xgboost", XGBOOST_NAME, "it asks for more than 1024 MiB."),
    "many trees": (
        "treelite_checkpoint",
        CHECKPOINT[:14] + struct.pack("<Q", 1 << 60) + CHECKPOINT[22:],
        "it asks for more than 1024 MiB.",
    ),
}


def refusal(path: Path, kind: str) -> str:
    with pytest.raises(InferError) as caught:
        read_model("m", path, kind, False)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused(tmp_path: Path, name: str) -> None:
    kind, content, reason = BAD[name]
    path = tmp_path / "file"
    path.write_bytes(content)
    message = refusal(path, kind)
    assert message.startswith(f"unable to load model 'm': '{path}' cannot be read as {kind}: ")
    assert reason in message and len(message) < 1000 and "/project/" not in message


def test_file_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_SECONDS", 1)
    monkeypatch.setattr(reading, "_MEMORY", 4 << 30)
    path = tmp_path / "file"
    path.write_bytes(LIGHTGBM_LEAVES)
    assert "cannot be read as lightgbm: that takes longer than 1 s." in refusal(path, "lightgbm")


def test_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CHECKPOINT)
    forest = read_forest(read_model("m", path, "treelite_checkpoint", False))
    assert forest.features == 3 and forest.roots.tolist() == [0, 3]
    assert forest.values[:, 0].tolist() == [0, 1, 2, 0, 1, 2]


def old_xgboost() -> bytes:
    """One tree in XGBoost's old binary format, which its newer versions do not write: x[1] < 0.5 ? 3 : 4."""
    learner = struct.pack("<f7I", 0.5, 2, 0, 0, 0, 1, 5, 0) + bytes(104)
    names = b"".join(struct.pack("<Q", len(name)) + name for name in (b"reg:linear", b"gbtree"))
    booster = struct.pack("<4iq2i", 1, 1, 2, 0, 0, 1, 0) + bytes(128)
    tree = struct.pack("<6i", 1, 3, 0, 1, 2, 0) + bytes(124)
    root = struct.pack("<3iIf", -1, 1, 2, 1 | 1 << 31, 0.5)
    leaves = b"".join(struct.pack("<3iIf", 0, -1, -1, 0, value) for value in (3, 4))
    return learner + names + booster + tree + root + leaves + bytes(3 * 16) + struct.pack("<i", 0)


def test_old_binary_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "xgboost.model"
    path.write_bytes(old_xgboost())
    rows = np.array([[9, 0.4], [9, 0.5], [9, np.nan]], np.float32)
    answers = treelite.gtil.predict(read_model("m", path, "xgboost", False), rows)
    assert answers.ravel().tolist() == [3.5, 4.5, 3.5]
    path.write_bytes(old_xgboost()[:-40])
    assert "cannot read specified number of nodes" in refusal(path, "xgboost")
    assert seems(old_xgboost()) == "xgboost"


def header(name: str, value: Any) -> Callable[[treelite.Model], None]:
    return lambda model: model.get_header_accessor().set_field(name, value)


def tree(name: str, value: Any) -> Callable[[treelite.Model], None]:
    return lambda model: model.get_tree_accessor(1).set_field(name, value)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


DAMAGE = {
    "a child of a node is no node of its tree": tree("cleft", ints(7, -1, -1)),
    "a node has two parents": tree("cleft", ints(2, -1, -1)),
    "a leaf has children": tree("cright", ints(2, 0, -1)),
    "a node is of unknown type": tree("node_type", np.array([1, 0, 3], np.int8)),
    "a node compares in an unknown way": tree("cmp", np.array([9, 0, 0], np.int8)),
    "a node tests a feature beyond 3": tree("split_index", ints(3, -1, -1)),
    "tree 1 has 2 values of 'threshold' for 3 nodes": tree("threshold", np.zeros(2, np.float32)),
    "'leaf_vector_end' of tree 1 is out of range": tree("leaf_vector_end", np.array([0, 5, 0], np.uint64)),
    "a tree is of an unknown class": header("class_id", ints(0, 1)),
    "a tree is of no class": header("class_id", ints(0, -1)),
    "a tree is of an unknown target": header("target_id", ints(0, 4)),
    "its base scores are not one for each class": header("base_scores", np.zeros(2)),
    "the shape of its leaves is [1, 5], for 1 classes": header("leaf_vector_shape", ints(1, 5)),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_damaged_trees_are_refused(fault: str) -> None:
    """Treelite's inference would read beyond its arrays, or never end."""
    model = stump()
    DAMAGE[fault](model)
    with pytest.raises(Damaged, match="^" + fault.replace("[", "\\[") + "$"):
        read_forest(model)


def test_cycle_of_nodes_is_refused() -> None:
    model = stump()
    tree("node_type", np.array([1, 1, 0], np.int8))(model)
    tree("cleft", ints(1, 1, -1))(model)
    tree("cright", ints(2, 2, -1))(model)
    with pytest.raises(Damaged):
        read_forest(model)


def test_lightgbm_without_its_last_trees_is_refused(tmp_path: Path) -> None:
    """Treelite reads the trees that are left, and answers by them."""
    rows = np.random.default_rng(0).random((200, 3))
    options = {"objective": "regression", "verbose": -1, "num_threads": 1}
    path = tmp_path / "model.txt"
    booster = lightgbm.train(options, lightgbm.Dataset(rows, rows[:, 0]), 5)
    text = booster.model_to_string()
    path.write_text(text[: text.index("\nTree=3")])
    assert "it is truncated: 'end of trees' is missing." in refusal(path, "lightgbm")
    path.write_text(text)
    assert read_model("m", path, "lightgbm", False).num_tree == 5


def test_name_of_the_model_does_not_name_its_file() -> None:
    """A model `x.fil` without a configuration gets model.fil for its file, as in Triton."""
    implied = config('name: "x.fil" default_model_filename: "model.fil"')
    assert file_name(implied, ["xgboost.ubj"]) == "xgboost.ubj"
    assert file_name(implied, ["model.fil"]) == "model.fil"


@pytest.mark.parametrize("kind", FILES)
def test_format_follows_from_the_only_known_name(kind: str) -> None:
    assert model_type(config('name: "m"'), ["README", FILES[kind]]) == kind
    assert model_type(config(f'name: "m" default_model_filename: "{FILES[kind]}"'), ["x"]) == kind


def test_format_is_triton_default_without_a_known_name() -> None:
    assert model_type(config('name: "m"'), list(FILES.values())) == "xgboost"


def test_format_is_seen_in_the_first_bytes() -> None:
    assert seems(CHECKPOINT) == "treelite_checkpoint"
    assert seems(b"tree\nversion=v4") == "lightgbm"
    assert seems(b'{"learner":{') == "xgboost_json"
    assert seems(b"{L" + bytes(7) + b"\x07learner") == "xgboost_ubj"
    assert seems(bytes(136) + b"\x0f\0\0\0\0\0\0\0binary:logistic\x06\0\0\0\0\0\0\0gbtree") == "xgboost"
    assert seems(b"\x80\x04") == ""
