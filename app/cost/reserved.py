"""What is kept for a replica, whether it uses it or not: the view of allocation. Pure."""

from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

_NUM_CPUS: Final = "ray_num_cpus"
_MEMORY: Final = "ray_memory_bytes"
_THREADS: Final = "intra_op_thread_count"


def reserved_cores(config: mc.ModelConfig, cores: int) -> float:
    """Return the processors of a replica: those that Ray keeps, or else one for each thread of its instances.

    Args:
        config: of the model.
        cores: of the machine: more are not there.
    """
    given = _number(config, _NUM_CPUS)
    if given is not None:
        return min(given, cores)
    threads = _number(config, _THREADS) or 1.0
    return min(threads * sum(max(group.count, 1) for group in config.instance_group) or 1.0, cores)


def reserved_bytes(config: mc.ModelConfig) -> float:
    """Return the memory that Ray keeps for a replica; 0 for none."""
    return _number(config, _MEMORY) or 0.0


def _number(config: mc.ModelConfig, name: str) -> float | None:
    """Return a parameter; None for none, or one that is no number, with which the model does not load."""
    if name not in config.parameters:
        return None
    try:
        found = float(config.parameters[name].string_value)
    except ValueError:
        return None
    return found if found >= 0 else None
