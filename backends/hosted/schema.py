"""Configurations of models in a process that has protobuf, of any version, and no tritonclient."""

import sys
from types import ModuleType
from typing import Any, Final

_NAME: Final = "tritonclient.grpc.model_config_pb2"


def install(serialised: bytes) -> Any:
    """Return the module of configurations, which our modules import by the name that it has in the server.

    The replica's own generated code would refuse an older protobuf; its descriptor does not.
    """
    module = sys.modules.get(_NAME)
    if module is None or not isinstance(module, _Generated):
        module = _Generated(_NAME)
        module.fill(serialised)
        package, _, last = _NAME.rpartition(".")
        for name in ("tritonclient", package):
            sys.modules.setdefault(name, ModuleType(name))
        setattr(sys.modules[package], last, module)
        sys.modules[_NAME] = module
    return module


class _Generated(ModuleType):
    def fill(self, serialised: bytes) -> None:
        """Add what protoc generates for a file."""
        from google.protobuf import descriptor_pool
        from google.protobuf.internal import builder

        descriptor = descriptor_pool.DescriptorPool().AddSerializedFile(serialised)
        builder.BuildMessageAndEnumDescriptors(descriptor, vars(self))
        builder.BuildTopDescriptorsAndMessages(descriptor, _NAME, vars(self))
