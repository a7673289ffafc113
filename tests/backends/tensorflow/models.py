"""Small TensorFlow models, written in seconds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


class Digits(tf.Module):  # type: ignore[misc]
    """A dense network with variables, as TensorFlow 2 saves it; `fixed` has a batch of that size."""

    def __init__(self, fixed: int | None = None) -> None:
        super().__init__()
        random = np.random.default_rng(7)
        self.hidden = tf.Variable(random.standard_normal((64, 32)).astype(np.float32))
        self.last = tf.Variable(random.standard_normal((32, 10)).astype(np.float32))
        self.fixed = fixed

    def answer(self, image: Any) -> dict[str, Any]:
        """Return logits and the class of each row."""
        logits = tf.nn.relu(image @ self.hidden) @ self.last
        return {"logits": logits, "label": tf.argmax(logits, axis=1)}

    def save(self, path: Path, signature: str = "serving_default") -> None:
        """Save with one signature."""
        spec = tf.TensorSpec((self.fixed, 64), tf.float32, name="image")
        call = tf.function(self.answer, input_signature=[spec]).get_concrete_function()
        tf.saved_model.save(self, str(path), signatures={signature: call})


def write_digits(path: Path, fixed: int | None = None, signature: str = "serving_default") -> Digits:
    """Write the network; return it."""
    module = Digits(fixed)
    module.save(path, signature)
    return module


class Words(tf.Module):  # type: ignore[misc]
    """Looks words up in a table that is read from an asset."""

    def __init__(self, vocabulary: Path) -> None:
        super().__init__()
        self.vocabulary = tf.saved_model.Asset(str(vocabulary))
        lines = tf.lookup.TextFileInitializer(
            self.vocabulary,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        self.table = tf.lookup.StaticHashTable(lines, -1)

    @tf.function(input_signature=[tf.TensorSpec((None, 1), tf.string, name="word")])  # type: ignore[untyped-decorator]
    def answer(self, word: Any) -> dict[str, Any]:
        """Return the line of each word, and the word doubled."""
        return {"line": self.table.lookup(word), "twice": word + word}


def write_words(path: Path, words: list[str]) -> None:
    """Write a model of strings, with its table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vocabulary = path.parent / "vocabulary.txt"
    vocabulary.write_text("\n".join(words) + "\n")
    tf.saved_model.save(Words(vocabulary), str(path))
    vocabulary.unlink()  # the model has its own copy


def write_add_sub(path: Path) -> None:
    """Write a GraphDef with INPUT0, INPUT1, OUTPUT0 = sum and OUTPUT1 = difference."""
    with tf.Graph().as_default() as graph:
        first, second = (v1.placeholder(tf.int32, (None, 16), name) for name in ("INPUT0", "INPUT1"))
        tf.add(first, second, name="OUTPUT0")
        tf.subtract(first, second, name="OUTPUT1")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph.as_graph_def().SerializeToString())


def write_counted(path: Path) -> None:
    """Write a GraphDef with a variable that its operation "init" sets to 5, and that is added to X."""
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("five", initializer=tf.constant(5.0), use_resource=True)
        tf.add(v1.placeholder(tf.float32, (None,), "X"), variable, name="Y")
        tf.group(variable.initializer, name="init")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph.as_graph_def().SerializeToString())
    (path.parent / "init.json").write_text(json.dumps({"init_ops": ["init"]}))


class Counter(tf.Module):  # type: ignore[misc]
    """Returns how many times it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec((None, 1), tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def answer(self, x: Any) -> dict[str, Any]:
        """Count."""
        return {"count": x * 0 + self.count.assign_add(1.0)}


def write_counter(path: Path) -> None:
    """Write a model with state."""
    module = Counter()
    tf.saved_model.save(module, str(path), signatures=module.answer)


def write_scalars(path: Path) -> None:
    """Write a model whose tensors have no dimensions."""
    module = tf.Module()
    spec = tf.TensorSpec((), tf.float32, name="x")
    module.answer = tf.function(lambda x: {"double": 2 * x, "name": tf.constant("scalar")}, [spec])
    tf.saved_model.save(module, str(path), signatures=module.answer)


def write_passing(path: Path) -> None:
    """Write a GraphDef that returns what it is given."""
    with tf.Graph().as_default() as graph:
        tf.identity(v1.placeholder(tf.float32, (None,), "X"), name="Y")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph.as_graph_def().SerializeToString())
