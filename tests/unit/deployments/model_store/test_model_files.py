"""Configurations and labels read from a model's files, and paths that lead out of it."""

import os
from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_files import check_paths, read_config, read_labels, version_listing
from tests.unit.deployments.model_store.repository_files import add, entry_of, refusal


def test_a_configuration_is_read_and_completed(repository: Path) -> None:
    add(repository, "m", {"1/model.onnx": "", "config.pbtxt": "max_batch_size: 4"})
    config = read_config(entry_of(repository))
    assert (config.name, config.max_batch_size, config.backend) == ("m", 4, "onnxruntime")
    assert (config.platform, config.default_model_filename) == ("onnxruntime_onnx", "model.onnx")


def test_a_missing_configuration_is_inferred_unless_forbidden(repository: Path) -> None:
    add(repository, "m", {"10/model.py": "", "2/model.onnx": ""})
    entry = entry_of(repository)
    # "10" comes before "2" in the alphabet.
    assert version_listing(entry) == {"model.py"}
    assert read_config(entry).backend == "python"
    error = refusal(entry, auto_complete=False)
    assert error.code is ErrorCode.INTERNAL
    assert error.message == (
        f"failed to open text file for read {repository}/m/config.pbtxt: No such file or directory"
    )


def test_named_configurations(repository: Path) -> None:
    files = {"config.pbtxt": "max_batch_size: 1", "configs/big.pbtxt": "max_batch_size: 64", "1/model.py": ""}
    add(repository, "m", files)
    entry = entry_of(repository)
    assert read_config(entry, "big").max_batch_size == 64
    assert read_config(entry, "absent").max_batch_size == 1
    for name in ("../big", "..", "a/b", "/etc/x", "a\0"):
        assert "invalid model config name" in refusal(entry, name).message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            'name: "other"',
            ErrorCode.INVALID_ARG,
            "unexpected directory name 'm' for model 'other', directory name must equal model name",
        ),
        (  # as in Triton, another fault comes first
            'name: "other" platform: "ensemble"',
            ErrorCode.INVALID_ARG,
            "ensemble scheduling must be set for ensemble other whose platform is ensemble",
        ),
        (
            'name: "other" platform: "ensemble" ensemble_scheduling {} model_warmup { name: "w" }',
            ErrorCode.INVALID_ARG,
            "model_warmup can not be specified for ensemble 'other'",
        ),
        (
            'name: "other" max_batch_size: -1',
            ErrorCode.INVALID_ARG,
            "'max_batch_size' must be non-negative value for other",
        ),
        (
            "max_batch: 3",
            ErrorCode.INTERNAL,
            "failed to read text proto from {path}/config.pbtxt: line 1, column 1: Message type "
            '"inference.ModelConfig" has no field named "max_batch". Did you mean \'max_batch_size\'?',
        ),
    ],
)
def test_bad_configurations(repository: Path, text: str, code: ErrorCode, message: str) -> None:
    path = add(repository, "m", {"config.pbtxt": text, "1/model.py": ""})
    error = refusal(entry_of(repository))
    assert (error.code, error.message) == (code, message.replace("{path}", str(path)))


def test_files_that_are_not_utf8_are_refused(repository: Path) -> None:
    path = add(repository, "m", {"1/model.py": ""}) / "config.pbtxt"
    prefix = f"failed to open text file for read {path}: "
    path.write_bytes(b'name: "m"\n\xff')
    assert refusal(entry_of(repository)).message == prefix + "line 2 is not UTF-8; save the file as UTF-8"
    path.write_bytes(b"#" * (5 << 20))
    assert refusal(entry_of(repository)).message == prefix + "larger than 4194304 bytes"
    path.unlink()
    os.mkfifo(path)
    assert refusal(entry_of(repository)).message == prefix + "not a regular file"
    path.unlink()
    path.mkdir()
    assert refusal(entry_of(repository)).message.startswith(prefix)


def test_configuration_may_be_a_link(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "outside.pbtxt").write_text("max_batch_size: 3")
    path = add(repository, "m", {"1/model.py": "", "..data/config.pbtxt": "max_batch_size: 5"})
    (path / "config.pbtxt").symlink_to(tmp_path / "outside.pbtxt")
    assert read_config(entry_of(repository)).max_batch_size == 3
    # Kubernetes mounts a ConfigMap as links within the directory.
    (path / "config.pbtxt").unlink()
    (path / "config.pbtxt").symlink_to("..data/config.pbtxt")
    assert read_config(entry_of(repository)).max_batch_size == 5


HOSTILE_PATHS = ["../x", "../../etc/passwd", "/etc/passwd", "a/../../../x", "..\\x", "a\\000b"]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("default_model_filename", 'default_model_filename: "{path}"'),
        ("cc_model_filenames", 'cc_model_filenames {{ key: "7.5" value: "{path}" }}'),
        (
            "input_data_file",
            'model_warmup {{ name: "w" inputs {{ key: "A" value {{ input_data_file: "{path}" }} }} }}',
        ),
        ("data_file", 'sequence_batching {{ state {{ initial_state {{ data_file: "{path}" }} }} }}'),
    ],
)
def test_file_names_outside_the_model_are_refused(
    repository: Path, field: str, template: str, path: str
) -> None:
    text = 'backend: "python" ' + template.format(path=path.replace("..\\", "..\\\\"))
    add(repository, "m", {"config.pbtxt": text, "1/model.py": ""})
    error = refusal(entry_of(repository))
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(f"'{field}' of model 'm' is ")
    assert "leads out of the" in error.message


def test_model_files_may_be_links(tmp_path: Path, repository: Path) -> None:
    path = add(repository, "m", {"1/x": "", "config.pbtxt": 'backend: "onnxruntime"'})
    (repository / "blobs").mkdir()
    (repository / "blobs" / "big").write_text("")
    (path / "1" / "model.onnx").symlink_to(repository / "blobs" / "big")
    read_config(entry_of(repository))
    (path / "1" / "model.onnx").unlink()
    (tmp_path / "outside.onnx").write_text("")
    (path / "1" / "model.onnx").symlink_to(tmp_path / "outside.onnx")
    read_config(entry_of(repository))


def labelled(repository: Path, label_file: str, files: dict[str, str]) -> ModelEntry:
    output = f'output {{ name: "O" data_type: TYPE_FP32 dims: 3 label_filename: "{label_file}" }}'
    add(repository, "m", {"config.pbtxt": f'backend: "python" {output}', "1/model.py": "", **files})
    return entry_of(repository)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("cat\ndog\n", ("cat", "dog")),
        ("cat\n\ndog", ("cat", "", "dog")),
        ("", ()),
        ("\n", ("",)),
        ("naïve café\x0bx\n", ("naïve café\x0bx",)),
    ],
)
def test_labels(repository: Path, text: str, labels: tuple[str, ...]) -> None:
    entry = labelled(repository, "names/labels.txt", {"names/labels.txt": text})
    assert read_labels(entry, read_config(entry)) == {"O": labels}


@pytest.mark.parametrize("path", [*HOSTILE_PATHS[:4], "out"])
def test_labels_outside_the_model_are_refused(tmp_path: Path, repository: Path, path: str) -> None:
    (tmp_path / "secret").write_text("x")
    entry = labelled(repository, path, {})
    (entry.directory / "out").symlink_to(tmp_path / "secret")
    error = refusal(entry)
    assert error.code is ErrorCode.UNSUPPORTED
    assert error.message == (
        f"label file path '{entry.directory / path}' for output 'O' in model 'm' is outside model directory"
    )


def test_missing_labels_are_reported(repository: Path) -> None:
    entry = labelled(repository, "labels.txt", {})
    with pytest.raises(InferError) as caught:
        read_labels(entry, read_config(entry))
    assert caught.value.message == (
        f"failed to open text file for read {entry.directory}/labels.txt: No such file or directory"
    )


def test_check_paths_without_versions(repository: Path) -> None:
    entry = entry_of(add(repository, "m", {"config.pbtxt": ""}).parent)
    check_paths(entry, read_config(add_python(entry)))


def add_python(entry: ModelEntry) -> ModelEntry:
    (entry.directory / "config.pbtxt").write_text('backend: "python"')
    return entry


BODY = 'backend: "python" input { name: "I" data_type: TYPE_FP32 dims: 1 }'


def test_files_of_an_editor_of_windows_are_read(repository: Path) -> None:
    entry = labelled(repository, "labels.txt", {"labels.txt": "\ufeffcat\r\ndog\r\n"})
    path = entry.directory / "config.pbtxt"
    path.write_text("\ufeff# Windows\r\n" + path.read_text().replace("\n", "\r\n"), encoding="utf-8")
    assert read_labels(entry, read_config(entry)) == {"O": ("cat", "dog")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name: "${model_name}"\n' + BODY, "put a value in place of '${...}'"),
        ("max_batch_size: ${max_batch_size}\n" + BODY, "put a value in place of '${...}'"),
        (BODY + "\ninstance_group [ { count: ${count} } ]", "put a value in place of '${...}'"),
        ('// my model\nname: "m"\n' + BODY, "a comment begins with '#', not with '//'"),
        ('name: "m"  # fine\n  // not fine\n' + BODY, "line 2, column 3: a comment begins with '#'"),
        ('/* my model */ name: "m"\n' + BODY, "a comment begins with '#'"),
    ],
)
def test_configurations_written_for_another_program_say_so(repository: Path, text: str, words: str) -> None:
    add(repository, "m", {"config.pbtxt": text, "1/model.py": ""})
    assert words in refusal(entry_of(repository)).message
