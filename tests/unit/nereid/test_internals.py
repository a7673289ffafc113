"""The server's packages are loaded by their location."""

import subprocess
import sys
from pathlib import Path

import pytest

from nereid.internals import PACKAGES, load_internals
from tests.server import ROOT
from tests.unit.nereid.engine.repositories import FP32, add_model


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory with packages of the same names."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("theirs = True\n")
    return tmp_path


def run(code: str, hostile: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the packages of `hostile` before the server's."""
    path = f"import sys; sys.path[:0] = [{str(hostile)!r}, {str(ROOT)!r}]\n"
    return subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, timeout=60)


def test_location_wins_over_the_path(hostile: Path) -> None:
    done = run(
        "from nereid import deployments; import nereid.server.cli, backends; print(backends.__file__)",
        hostile,
    )
    assert done.stdout == f"{ROOT / 'backends' / '__init__.py'}\n", done.stderr


def test_client_library_is_found_by_location(hostile: Path) -> None:
    code = "from nereid import deployments; import nereid_client.vision; print(nereid_client.__file__)"
    assert run(code, hostile).stdout == f"{ROOT / 'client/nereid_client/__init__.py'}\n"


def test_public_names_leave_packages_of_the_same_names_alone(hostile: Path) -> None:
    done = run("import nereid, app; print(app.theirs, nereid.model_handle.__name__)", hostile)
    assert done.stdout == "True model_handle\n", done.stderr


def test_server_refuses_to_share_a_process_with_another_app(hostile: Path) -> None:
    done = run("import app, nereid; nereid.build({})", hostile)
    text = f"the package 'app' of this process is <module 'app' from '{hostile}/app/__init__.py'>, not that"
    assert text in done.stderr


def test_server_refuses_to_share_a_process_with_a_module_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    done = run("import app, nereid; nereid.build({})", tmp_path)
    assert "ImportError: the package 'app' of this process is <module 'app'" in done.stderr


def test_loading_twice_changes_nothing() -> None:
    before = [sys.modules.get(name) for name in PACKAGES]
    load_internals()
    load_internals()
    assert all(sys.modules[name] is module for name, module in zip(PACKAGES, before, strict=True) if module)


@pytest.mark.parametrize("theirs", [True, False])
def test_prepared_process_becomes_either(hostile: Path, theirs: bool) -> None:
    prepare = """
import nereid.deployments, nereid.server.cli
from nereid.internals import set_aside

prepared = nereid.server.cli
set_aside("nereid.deployments")
"""
    become = (
        "import app; print(app.theirs)"
        if theirs
        else "import sys, nereid.server.cli as again; from nereid import deployments\n"
        "print(again is prepared and sys.modules['nereid.deployments'] is deployments)"
    )
    done = run(prepare + become, hostile)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("name", ["Ingress", "ModelVersion", "RepositoryManager"])
def test_deployments_are_pickled_by_a_public_name(name: str) -> None:
    from ray import cloudpickle

    from nereid import deployments

    pickled = cloudpickle.dumps(getattr(deployments, name))  # type: ignore[no-untyped-call]
    assert b"nereid.deployments" in pickled and len(pickled) < 100


def test_process_that_deploys_does_not_import_what_it_deploys(tmp_path: Path) -> None:
    code = """
from ray import cloudpickle
import nereid.server.main, app.settings.load
from nereid.deployments import CLASSES

made = nereid.server.main.build({"model_repository": "/"})._bound_deployment
assert made.func_or_class.__name__ == "Ingress"
print(len(cloudpickle.dumps(made.func_or_class)) < 100)
print([name for name in CLASSES.values() if name in sys.modules])
"""
    done = run(code, tmp_path)
    assert done.stdout == "True\n[]\n", done.stderr


def test_what_stands_for_a_deployment_is_pickled_as_that() -> None:
    from ray import cloudpickle

    from deployments.stand_in import stand_in
    from nereid import deployments

    real = deployments.__getattr__("ModelVersion")
    stands_in = stand_in("ModelVersion")
    try:
        pickled = cloudpickle.dumps(stands_in)  # type: ignore[no-untyped-call]
    finally:
        del deployments.ModelVersion  # of this process, which is one of both
    assert cloudpickle.loads(pickled) is real


def test_prepared_process_deploys_by_name(tmp_path: Path) -> None:
    """As the manager does, whose modules were imported before it was a process of its own."""
    code = """
import nereid.deployments
from deployments.stand_in import stand_in
from nereid.internals import set_aside
from ray import cloudpickle

set_aside("nereid.deployments")
import nereid.deployments
print(len(cloudpickle.dumps(stand_in("ModelVersion"))) < 100)
"""
    done = run(code, tmp_path)
    assert done.stdout == "True\n", done.stderr


def test_model_authors_import_the_utils_without_a_server(hostile: Path) -> None:
    code = """
import numpy as np
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import InferenceResponse

print(InferenceResponse([pb_utils.Tensor("O", np.ones(2))]).output_tensors()[0].as_numpy())
try:
    pb_utils.InferenceRequest(model_name="m", requested_output_names=["O"], inputs=[]).exec()
except pb_utils.TritonModelException as error:
    print(error)
"""
    done = run(code, hostile)
    assert done.stdout == "[1. 1.]\nBLS is only supported during the 'execute' function.\n", done.stderr


IN_THE_PROCESS = """
import numpy
import nereid.errors, nereid.inprocess, nereid.testing
from nereid.testing import InferError, load_model

with load_model("models/double") as model:
    assert model(IN=[1.0, 2.0])["OUT"].tolist() == [2, 4]
    try:
        model(WRONG=[1.0])
    except nereid.errors.InferError as error:
        assert type(error) is InferError
with nereid.inprocess.Server(model_repository="models") as server:
    for response in server.model("double").infer(inputs={"IN": numpy.ones(2, numpy.float32)}):
        assert numpy.from_dlpack(response.outputs["OUT"]).tolist() == [2, 2]
"""


@pytest.mark.parametrize(
    "code",
    [f"import app\n{IN_THE_PROCESS}", f"{IN_THE_PROCESS}\nimport app, backends, deployments"],
    ids=["theirs first", "ours first"],
)
def test_models_run_in_a_process_with_packages_of_the_same_names(hostile: Path, code: str) -> None:
    add_model(hostile / "models", "double", config=FP32)
    check = "assert app.theirs and 'app.core' not in sys.modules; print('done')"
    done = run(f"import os; os.chdir({str(hostile)!r})\n{code}\n{check}", hostile)
    assert done.stdout == "done\n", done.stderr


def test_without_packages_of_the_same_names_the_servers_keep_theirs(tmp_path: Path) -> None:
    done = run("import nereid.testing; print(nereid.testing.load_model.__module__)", tmp_path)
    assert done.stdout == "nereid.testing.models\n", done.stderr
