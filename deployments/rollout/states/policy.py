"""Reads the policy of a model's rollouts: `rollout.yaml`, and the fields that a request gives instead."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from app.core.rollout.spec import OutputRules, RolloutSpec, TapeRules
from deployments.model_store.layout import ROLLOUT_FILE, ModelEntry
from deployments.model_store.policy_files import converted, parse_yaml, read_policy_file
from nereid_client.comparison.acceptance import MOST_ROWS, rows_needed

_GONE: Final = (
    "this measure, relative to values near 0, is gone: give each output its tolerances, as "
    "'outputs: {NAME: {atol: 0.01, rtol: 0.05}}' (the name * stands for all others), and min_agreement"
)


def read_policy(entry: ModelEntry) -> RolloutSpec | None:
    """Read the policy of a model; None without one.

    Raises:
        InferError: INVALID_ARG or INTERNAL with the reason.
    """
    path = entry.directory / ROLLOUT_FILE
    text = read_policy_file(path)
    return None if text is None else parse_policy(text, str(path))


def parse_policy(text: str, source: str = ROLLOUT_FILE) -> RolloutSpec:
    """Parse the text of a `rollout.yaml`; an empty one is the default policy.

    Args:
        text: YAML.
        source: what an error calls it.

    Raises:
        InferError: INVALID_ARG with source, field and reason.
    """
    return _checked(parse_yaml(text, source), source)


def check_outputs(policy: RolloutSpec, config: mc.ModelConfig, source: str = ROLLOUT_FILE) -> None:
    """Check that the rules of a model's outputs, as far as it names them, can find something.

    Raises:
        InferError: INVALID_ARG with source and rule.
    """
    rules = policy.judge.output or OutputRules()
    for output in config.output:
        datatype = mc.DataType.Name(output.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
        why = rules.nothing_compared(output.name, datatype, output.dims)
        if why:
            raise invalid_arg(f"{source}: judge.output: {why}")


def merged(policy: RolloutSpec, fields: Mapping[str, Any], source: str = "spec") -> RolloutSpec:
    """Return a policy with some fields replaced; those of `step` and `judge` one by one.

    Raises:
        InferError: INVALID_ARG with source, field and reason.
    """
    return _checked(_merged(msgspec.to_builtins(policy), fields), source)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: (old[key], value) for key, value in new.items() if key in old}
    nested = {
        key: _merged(before, after)
        for key, (before, after) in both.items()
        if isinstance(before, Mapping) and isinstance(after, Mapping)
    }
    return {**old, **new, **nested}


def _checked(fields: Any, source: str) -> RolloutSpec:
    policy = converted(fields, RolloutSpec, source)
    output = policy.judge.output
    if output is not None and output.max_difference is not None:
        raise invalid_arg(f"{source}: judge.output.max_difference: {_GONE}")
    if policy.tape is not None:
        _check_tape(policy.tape, output or OutputRules(), source)
        if policy.strategy == "resource_preserving":
            raise invalid_arg(f"{source}: tape: with strategy resource_preserving there is no time for it")
    for before, after in pairwise(policy.steps):
        if after <= before:
            raise invalid_arg(f"{source}: steps: {after:g} follows {before:g}, but steps must rise")
    return policy


def _check_tape(tape: TapeRules, output: OutputRules, source: str) -> None:
    """Check that so many recorded requests can show what they are to show.

    Raises:
        InferError: INVALID_ARG with the number that is needed.
    """
    needed = rows_needed(0, output.allowed, tape.confidence)
    if tape.requests >= needed:
        return
    share = f"{1 - output.allowed:.6g} with a confidence of {tape.confidence:g}"
    if needed >= MOST_ROWS:
        raise invalid_arg(f"{source}: tape: no number of requests shows a min_agreement of {share}")
    raise invalid_arg(
        f"{source}: tape.requests: {tape.requests:,} cannot show a min_agreement of {share}: that takes "
        f"{needed:,}, all of them right"
    )
