"""Puts the server's packages into `nereid` in a wheel, so that it installs none named `app`, and compiles
what is written in C where there is a compiler: the server works without, so a failure is a warning.

    python setup.py build_ext --inplace     compiles it for this checkout

NEREID_COMPILE=never leaves out what is compiled, for a wheel of any machine; =always fails where it cannot.
"""

import os
import shlex
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
from app.core.installed.compilers import compiler_while_installing  # noqa: E402
from app.native.sources import digest  # noqa: E402

COMPILE = os.environ.get("NEREID_COMPILE", "")
INTERNALS = ("app", "backends", "deployments")
found = find_packages(include=[pattern for name in INTERNALS for pattern in (name, f"{name}.*")])
# Beside its own distribution, which need not be installed where the server is.
found += [f"client.{name}" for name in find_packages("client")]
# What `nereid files` writes; an image is built without.
FILES = [name for name in ("cluster", "docs") if (ROOT / name).is_dir()]
# The documentation as a site, if `make docs` has built it: the server serves it.
# (Published sources have it beside this file: setuptools puts nothing of `build` into them.)
built = [folder for folder in ("manual", "build/manual") if (ROOT / folder / "index.html").is_file()]
MANUAL = dict.fromkeys(["nereid._server.manual"], built[0]) if built else {}

extension = Extension(
    "nereid._server.app.native.extension",
    [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("app/native/*.c"))],
    depends=[str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("app/native/*.h"))],
    define_macros=[("SOURCES", f'"{digest()}"')],
    extra_compile_args=["-std=c11", "-O2", "-g1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow"],
    optional=COMPILE != "always",
)
# No module of Python, but a library that is loaded before others: app/ray_adapter/local/forking.py.
rare_checks = Extension(
    "nereid._server.app.ray_adapter.local.rare_checks",
    ["app/ray_adapter/local/rare_checks.c"],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-Wshadow"],
    optional=COMPILE != "always",
)
compiler = compiler_while_installing()
if compiler is not None:  # Python names the one that it was compiled with, which need not be here
    os.environ["CC"] = shlex.join(compiler)

setup(
    py_modules=["triton_python_backend_utils"],
    packages=[
        *find_packages(include=["nereid", "nereid.*"]),
        *(f"nereid._server.{name}" for name in (*found, *FILES)),
        *MANUAL,
    ],
    package_dir={f"nereid._server.{name}": name for name in (*INTERNALS, "client", *FILES)} | MANUAL,
    ext_modules=[] if COMPILE == "never" else [extension, rare_checks],
)
