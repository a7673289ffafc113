"""Backends that run in environments of their own, each a folder like one of a backend directory.

`model.py` defines `TritonPythonModel`, which executes every model of the backend; `requirements.txt` pins all
that its environment has. `nereid backends install NAME` makes the environment.
"""
