"""A server as containers and batch systems start it: any user id, no home, a long TMPDIR, links."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_model, write_python_model
from tests.server import ROOT, Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

USER = 8888
"""No entry in the table of users has it."""
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups") if os.geteuid() == 0 else ()
NAMES = ("模型", "a#b", "long" * 40)
SOURCE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        read = [pb_utils.get_input_tensor_by_name(each, "INPUT0").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in read]
"""
CONFIG = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] %s }
"""


class UserServer(Server):
    """A server of a user without a home directory."""

    program = (*AS_USER, "env", "-u", "HOME", sys.executable, "-m", "nereid")
    directory = Path("/")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that the user gets to, below /tmp."""
    with tempfile.TemporaryDirectory(prefix="containers-", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o755)
        yield Path(path)


def link(target: str | Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def copy_of_model(directory: Path) -> Path:
    write_python_model(directory.parent, directory.name, CONFIG % "", SOURCE)
    return directory


def write_links(repository: Path, store: Path) -> list[str]:
    """Write models as operators link them together; return their names."""
    write_model(store, "m")
    (store / "code").mkdir()
    (store / "code" / "model.py").write_text(SOURCE)
    (store / "config.pbtxt").write_text(CONFIG % "")
    config = (store / "m" / "config.pbtxt").read_text()
    write_model(repository, "plain")
    copy_of_model(repository / "code")
    link("../store/m", repository / "outside_relative")
    link(store / "m", repository / "outside_absolute")
    link("plain", repository / "alias")
    link(store / "m" / "1", repository / "version_outside" / "1")
    (repository / "version_outside" / "config.pbtxt").write_text(config)
    link("1", write_model(repository, "version_alias", more="version_policy { all {} }") / "2")
    (copy_of_model(repository / "config_outside") / "config.pbtxt").unlink()
    link(store / "config.pbtxt", repository / "config_outside" / "config.pbtxt")
    link("/etc/hostname", write_model(repository, "extra_outside") / "1" / "weights.bin")
    for name, target in {
        "file_outside": str(store / "code" / "model.py"),
        "file_sibling": "../../code/1/model.py",
        "file_above": "../shared_model.py",
    }.items():
        link(target, repository / name / "1" / "model.py")
        (repository / name / "config.pbtxt").write_text(CONFIG % "")
    (repository / "file_above" / "shared_model.py").write_text(SOURCE)
    return sorted(path.name for path in repository.iterdir())


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = place / "repository"
    write_links(repository, place / "store")
    for name in NAMES:
        write_model(repository, name)
    (repository / "lost+found").mkdir(mode=0o700)
    (place / "link").symlink_to("repository")
    temporary = place / "scratch" / ("job_" + "x" * (90 - len(f"{place}/scratch/job_")))
    temporary.mkdir(parents=True)
    if AS_USER:
        os.chown(temporary, USER, USER)
    repository.chmod(0o555)
    arguments = [f"--model-repository={place}/link", "--model-control-mode=explicit", "--load-model=*"]
    log = tmp_path_factory.mktemp("containers") / "log"
    server = UserServer(arguments, log, {"TMPDIR": str(temporary)}).start()
    try:
        yield server
    finally:
        repository.chmod(0o755)
        assert server.stop() == 0
    assert "Traceback" not in server.output()


def test_models_behind_links_and_of_any_name_are_served(server: Server, place: Path) -> None:
    names = {path.name for path in (place / "repository").iterdir()} - {"lost+found", "labels_outside"}
    assert names > {"alias", "file_above", *NAMES} and len(names) == 15
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for name in sorted(names):
            config = client.get_model_config(name).config
            array = np.arange(16, dtype=np.float32).reshape((1, 16) if config.max_batch_size else 16)
            tensor = grpcclient.InferInput("INPUT0", array.shape, "FP32")
            tensor.set_data_from_numpy(array)
            assert (client.infer(name, [tensor]).as_numpy("OUTPUT0") == array).all(), name
    status, page = server.get("/metrics", port=server.metrics_port)
    assert status == 200 and all(f'model="{name}"' in page.decode() for name in names)


def test_a_name_is_percent_encoded_over_http(server: Server) -> None:
    for name in NAMES:
        status, body = server.get(f"/v2/models/{quote(name)}")
        assert (status, json.loads(body)["name"]) == (200, name)


def test_models_of_any_name_are_changed_unloaded_and_loaded(server: Server, place: Path) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        for name in NAMES:
            write_model(place / "repository", name, more="instance_group { count: 2 }")
            client.load_model(name)
            assert client.get_model_config(name).config.instance_group[0].count == 2
            client.unload_model(name)
            assert not client.is_model_ready(name)
            client.load_model(name)
            assert client.is_model_ready(name)


def test_directories_of_the_file_system_are_told_and_left_out(server: Server, place: Path) -> None:
    line = f"'{place}/link/lost+found' is of the file system, and no model: it is left out"
    assert server.output().count(line) == 1
    assert server.get("/v2/models/lost+found")[0] == 404


def test_label_files_out_of_a_model_are_refused_as_in_triton(server: Server, place: Path) -> None:
    write_python_model(
        place / "repository", "labels_outside", CONFIG % 'label_filename: "labels.txt"', SOURCE
    )
    (place / "store" / "labels.txt").write_text("cat\n")
    link(place / "store" / "labels.txt", place / "repository" / "labels_outside" / "labels.txt")
    with (
        grpcclient.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException, match="is outside model directory"),
    ):
        client.load_model("labels_outside")


def test_status_from_a_shell_with_another_tmpdir(server: Server) -> None:
    assert server.process is not None
    command = [*AS_USER, "env", "-u", "HOME", sys.executable, "-m", "nereid", "status"]
    told = subprocess.run(
        [*command, f"--pid={server.process.pid}"],
        cwd=server.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert server.http_url in told.stdout
