"""Reads how the requests of a model are watched: `drift.yaml`."""

from app.core.drift.spec import DriftSpec
from app.core.errors import invalid_arg
from deployments.model_store.layout import DRIFT_FILE, ModelEntry
from deployments.model_store.policy_files import converted, parse_yaml, read_policy_file


def read_drift(entry: ModelEntry) -> DriftSpec | None:
    """Read how a model is watched; None without a `drift.yaml`.

    Raises:
        InferError: INVALID_ARG or INTERNAL with the reason.
    """
    path = entry.directory / DRIFT_FILE
    text = read_policy_file(path)
    return None if text is None else parse_drift(text, str(path))


def parse_drift(text: str, source: str = DRIFT_FILE) -> DriftSpec:
    """Parse the text of a `drift.yaml`; an empty one is the default. Raise as `read_drift`."""
    spec = converted(parse_yaml(text, source), DriftSpec, source)
    for name, rule in spec.inputs.items():
        where = f"{source}: inputs: {name}"
        if rule.range is not None and not rule.range[0] <= rule.range[1]:
            raise invalid_arg(f"{where}: range: {rule.range[0]:g} to {rule.range[1]:g} has no numbers")
        if rule.range is None and rule.nan is None and rule.new is None:
            raise invalid_arg(f"{where}: a rule needs range, nan or new")
        if rule.values and rule.new is None:
            raise invalid_arg(f"{where}: values say what is known: new is to say what is done with others")
    return spec
