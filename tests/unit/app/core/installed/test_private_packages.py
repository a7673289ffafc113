"""Names in a process that executes models: theirs are the plain ones, the server's are private."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.installed import private_packages
from app.core.installed.own_modules import PREFIX, import_own
from tests.unit.test_imports import ROOT

START = f"""
import importlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("private", {private_packages.__file__!r})
private = importlib.util.module_from_spec(spec)
spec.loader.exec_module(private)
ROOT = {str(ROOT)!r}
private.use_private_names(ROOT)

def fails(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return error.name == name.partition(".")[0] and str(error) == f"No module named {{error.name!r}}"
"""
HIDDEN = """
for name in ("app", "backends", "deployments", "nereid", "app.core.errors", "nereid._server.app"):
    assert fails(name), name
import _nereid.app.core.errors
assert not set(sys.modules) & {"app", "backends", "deployments", "nereid"}
"""


def execute(code: str, folder: Path, *paths: Path, flags: str = "-s") -> str:
    """Execute code in a process whose models' folder is the current one; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, flags, "-c", START + code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_server_has_no_plain_names_in_an_editable_install(tmp_path: Path) -> None:
    execute(HIDDEN, tmp_path)
    execute(HIDDEN, tmp_path, flags="-I")


def test_the_server_has_no_plain_names_on_the_path(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ROOT)
    execute(HIDDEN, tmp_path, ROOT)
    execute(HIDDEN, tmp_path, link)
    execute(HIDDEN, ROOT)  # the current directory


def test_a_models_modules_win(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("MINE = 1")
    for name in ("backends/core", "deployments"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "backends" / "__init__.py").write_text("from backends.core import MINE")
    (tmp_path / "backends" / "core" / "__init__.py").write_text("MINE = 2")
    (tmp_path / "deployments" / "nereid.py").write_text("MINE = 3")
    (tmp_path / "nereid.py").write_text("from deployments import nereid; MINE = nereid.MINE + 1")
    mine = """
import app, backends, deployments.nereid, nereid
assert [each.MINE for each in (app, backends, deployments.nereid, nereid)] == [1, 2, 3, 4]
import _nereid.app.core.errors as errors, _nereid.backends.description
assert errors.__file__.startswith(ROOT)
assert app.__builtins__["__import__"] is __import__
"""
    execute(mine, tmp_path)
    execute(mine, tmp_path, ROOT)


def test_packages_without_init_are_a_models_too(tmp_path: Path) -> None:
    """Also of several folders, and below the server's on the path, which Python would prefer."""
    for part in ("one", "two"):
        (tmp_path / part / "backends").mkdir(parents=True)
        (tmp_path / part / "backends" / f"{part}.py").write_text(f"MINE = {part!r}")
    code = "import backends.one, backends.two; print(backends.one.MINE, backends.two.MINE)"
    assert execute(code, tmp_path, ROOT, tmp_path / "one", tmp_path / "two") == "one two\n"


def test_a_package_with_a_finder_of_its_own_is_a_models_too(tmp_path: Path) -> None:
    """As an editable install has one."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "app.py").write_text("MINE = 1")
    code = f"""
from importlib.machinery import PathFinder
class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(tmp_path / "elsewhere")!r}]) if name == "app" else None
class Old:
    pass  # finders of Python 3.3 had another method
sys.meta_path += [Old, Editable]
import app
print(app.MINE)
"""
    assert execute(code, tmp_path, ROOT) == "1\n"


def test_a_name_of_nobody_is_none_to_those_who_look(tmp_path: Path) -> None:
    execute("assert importlib.util.find_spec('app') is None", tmp_path)


INSTALLED = """
from _nereid.nereid import errors
assert errors.__name__ == "_nereid.nereid.errors"
from _nereid.app.uses import error, folder
assert error is errors.InferError and folder == errors.__file__
assert fails("nereid") and fails("nereid.errors") and fails("app")
"""


def test_models_may_use_the_client_library(tmp_path: Path) -> None:
    """A distribution of its own, which wins where it is installed."""
    code = "import nereid_client; print(nereid_client.__file__, hasattr(nereid_client, 'connect'))"
    assert execute(code, tmp_path) == f"{ROOT / 'client/nereid_client/__init__.py'} True\n"
    (tmp_path / "nereid_client.py").write_text("connect = 1")
    assert execute(code, tmp_path) == f"{tmp_path / 'nereid_client.py'} True\n"


def test_an_installed_server_has_its_public_package_privately(tmp_path: Path) -> None:
    """A wheel has the others within it."""
    public = tmp_path / "site" / "nereid"
    (public / "_server" / "app").mkdir(parents=True)
    (public / "__init__.py").write_text("")
    (public / "errors.py").write_text("class InferError(Exception): pass")
    uses = "from nereid.errors import InferError as error\nimport nereid.errors as e\nfolder = e.__file__"
    (public / "_server" / "app" / "__init__.py").write_text("")
    (public / "_server" / "app" / "uses.py").write_text(uses)
    root = f"sys.meta_path.pop(0); private.use_private_names({str(public / '_server')!r})\n"
    execute(root + INSTALLED, tmp_path, tmp_path / "site", flags="-S")  # without the checkout


OWN = '''
import dataclasses, enum, pickle, traceback, typing
from pathlib import Path

folder = Path(sys.argv[0] or ".").resolve() / "root" / "app"
folder.mkdir(parents=True)
(folder / "__init__.py").write_text("")
(folder / "other.py").write_text("VALUE = 7")
(folder / "sub").mkdir()
(folder / "sub" / "__init__.py").write_text("from . import leaf")
(folder / "sub" / "leaf.py").write_text("from ..other import VALUE")
(folder / "own.py").write_text("""
from __future__ import annotations
import dataclasses, enum, typing
import app, app.other
import app.other as renamed
import app.sub.leaf as leaf
from app import other, sub
from app.other import *

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass(frozen=True)
class Point:
    x: int = 1
    colour: Colour = Colour.RED
    kind: typing.ClassVar[int] = 3

class Pair(typing.NamedTuple):
    left: Point
    right: typing.Optional[Colour] = None

class Wrong(Exception):
    pass

def lazy():
    import app.sub
    from app.other import VALUE
    return VALUE, app.sub.leaf.VALUE

def everything():
    return {app.other, renamed, other, sys_of(), sub.leaf, leaf}

def sys_of():
    import sys
    return sys.modules["_nereid.app.other"]

def fail():
    raise Wrong("no")  # the line of a traceback
""")
sys.meta_path.pop(0)
private.use_private_names(str(folder.parent))
from _nereid.app import own
assert own.lazy() == (7, 7) and own.VALUE == 7 and len(own.everything()) == 2
point = own.Point(2)
for value in (point, own.Pair(point), own.Colour.RED, own.Wrong("w").args, own.lazy):
    assert pickle.loads(pickle.dumps(value)) == value
assert dataclasses.replace(point, x=3) == own.Point(3) and dataclasses.asdict(point)["x"] == 2
assert typing.get_type_hints(own.Point) == {"x": int, "colour": own.Colour, "kind": typing.ClassVar[int]}
assert typing.get_type_hints(own.Pair)["left"] is own.Point
assert own.Point.__module__ == "_nereid.app.own"
try:
    own.fail()
except own.Wrong:
    assert "# the line of a traceback" in traceback.format_exc()
import inspect
assert "of a traceback" in inspect.getsource(own.fail)
assert importlib.reload(own).lazy() == (7, 7)
'''


def test_own_modules_work_as_by_their_plain_names(tmp_path: Path) -> None:
    execute(OWN, tmp_path)


def test_the_modules_of_models_processes_import(tmp_path: Path) -> None:
    execute(
        "import _nereid.deployments.model_process.program, _nereid.backends.python.backend\n"
        "from _nereid.app.core.installed.own_modules import PREFIX, import_own\n"
        "assert import_own('app.core.errors').__name__ == PREFIX + 'app.core.errors' != 'app.core.errors'\n"
        "assert not set(sys.modules) & {'app', 'backends', 'deployments', 'nereid', 'ray'}",
        tmp_path,
        ROOT,
    )


@pytest.mark.parametrize("name", ["app.core.errors", "backends.description"])
def test_own_modules_have_plain_names_elsewhere(name: str) -> None:
    assert PREFIX == "" and import_own(name) is sys.modules[name]
