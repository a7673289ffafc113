"""Puts the server's packages into `nereid` in a wheel, so that it installs none named `app`."""

from setuptools import find_packages, setup

INTERNALS = ("app", "backends", "deployments")
found = find_packages(include=[pattern for name in INTERNALS for pattern in (name, f"{name}.*")])

setup(
    py_modules=["triton_python_backend_utils"],
    packages=["nereid", "nereid.vision", *(f"nereid._server.{name}" for name in found)],
    package_dir={f"nereid._server.{name}": name for name in INTERNALS},
)
