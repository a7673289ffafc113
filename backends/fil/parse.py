"""Reads a file of trees in a process of its own, with bounded memory and time; see `reading.py`.

A damaged file can make treelite's parsers ask for any amount of memory, or never end. This program imports
nothing of the server: `python -P parse.py MODEL_TYPE FILE ALLOW_UNKNOWN_FIELD BYTES SECONDS` writes a
checkpoint of treelite to its standard output and ends with 0, or writes what is wrong and ends with 1.
"""

import os
import resource
import sys

import treelite
from treelite import frontend


def load(model_type: str, path: str, allow_unknown_field: bool) -> treelite.Model:
    if model_type == "lightgbm":
        return frontend.load_lightgbm_model(path)
    if model_type == "treelite_checkpoint":
        return treelite.Model.deserialize(path)
    if model_type == "xgboost":
        return frontend.load_xgboost_model_legacy_binary(path)
    choice = {"xgboost_json": "json", "xgboost_ubj": "ubjson"}[model_type]
    return frontend.load_xgboost_model(path, format_choice=choice, allow_unknown_field=allow_unknown_field)


def main(model_type: str, path: str, allow_unknown_field: str, memory: str, seconds: str) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = os.dup(1)
    os.dup2(2, 1)  # where treelite writes, too
    try:
        answer, status = load(model_type, path, allow_unknown_field == "true").serialize_bytes(), 0
    except UnicodeDecodeError:  # treelite quotes the file in its error
        answer, status = b"it is not a text file", 1
    except Exception as error:
        answer, status = str(error).encode(), 1
    with open(output, "wb") as file:
        file.write(answer)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
