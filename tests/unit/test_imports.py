"""The direction of imports: each folder may import what this table says, and nothing else of ours."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TREES = ("app", "backends", "client/nereid_client", "deployments", "nereid")

TABLE = """
app.access: app.core app.core.cost app.core.observability app.protocol
app.cache: app.core app.core.installed app.core.system
app.console: app.core app.core.files app.core.observability app.core.system app.protocol.http
app.core:
app.core.config: app.core
app.core.cost: app.core app.core.files
app.core.drift: app.core
app.core.feedback: app.core.rollout
app.core.files:
app.core.installed:
app.core.observability: app.core app.core.installed app.core.tape
app.core.rollout: app.core.cost app.core.installed app.core.observability nereid_client.comparison
app.core.system:
app.core.tape: app.core nereid_client.tape
app.cost: app.core app.core.cost app.core.files app.core.observability app.core.system app.dispatch
    app.routing app.transport.channel
app.dispatch: app.cache app.core app.core.observability app.ensemble app.rollout app.routing
app.drift: app.core app.core.config app.core.drift app.core.observability app.routing app.transport.memory
app.ensemble: app.cache app.core app.core.config app.core.observability app.core.system app.native app.routing
    app.transport app.transport.memory app.transport.wire
app.feedback: app.core app.core.feedback app.core.observability nereid_client.tape
app.ingress: app.access app.cache app.core app.core.files app.core.observability app.core.system
    app.core.tape app.cost app.dispatch app.drift app.feedback app.ingress.access
    app.ingress.client_memory app.ingress.clouds app.ingress.compatible app.ingress.grpc
    app.ingress.metrics app.ingress.net app.ingress.openai app.ingress.rest app.ingress.rest.openapi
    app.ingress.service app.ingress.tracing app.native app.ray_adapter app.ray_adapter.serve
    app.rollout app.routing app.settings app.settings.flag app.tape app.transport.loops
    app.transport.memory app.transport.wire
app.ingress.access: app.access app.core app.core.cost app.core.rollout app.ingress.http1 app.ingress.http2
    app.ingress.service app.protocol app.protocol.grpc app.protocol.http app.routing
app.ingress.client_memory: app.core app.core.files app.transport.memory
app.ingress.clouds: app.core app.ingress.access app.ingress.http1 app.ingress.metrics app.ingress.net
    app.ingress.rest app.ingress.service app.ingress.tracing app.protocol app.protocol.http app.settings
app.ingress.compatible: app.core app.core.system app.ingress.access app.ingress.http1 app.ingress.rest
    app.protocol app.protocol.http app.protocol.tfserving app.routing
app.ingress.grpc: app.core app.core.feedback app.core.observability app.core.system app.ingress.access
    app.ingress.http2 app.ingress.net app.ingress.service app.ingress.tracing app.protocol app.protocol.grpc
    app.protocol.observability app.protocol.tfserving app.routing app.settings nereid_client.feedback
app.ingress.http1: app.core app.core.system app.ingress.net app.protocol app.protocol.grpc app.protocol.http
    app.settings app.transport.memory
app.ingress.http2: app.core app.ingress.net app.native app.protocol app.protocol.grpc app.settings
    app.transport.memory
app.ingress.metrics: app.access app.core app.core.cost app.core.drift app.core.feedback
    app.core.installed app.core.observability app.core.rollout app.core.system app.ingress.access
    app.ingress.http1 app.ingress.net app.ingress.service app.protocol.http app.rollout app.routing
    app.settings app.tape
app.ingress.net: app.core app.core.system app.protocol.grpc
app.ingress.openai: app.core app.core.config app.core.observability app.core.system app.ingress.access
    app.ingress.compatible app.ingress.http1 app.ingress.metrics app.ingress.rest app.ingress.service
    app.protocol.http app.protocol.openai app.protocol.openai.responses app.protocol.openai.texts
    app.protocol.openai.tools app.routing app.settings
app.ingress.rest: app.core app.core.config app.core.observability app.core.system app.ingress.access
    app.ingress.http1 app.ingress.net app.ingress.rest.openapi app.ingress.rest.reads app.ingress.service
    app.ingress.tracing
    app.native app.protocol app.protocol.http app.routing app.settings
app.ingress.rest.home: app.core app.core.config app.routing
app.ingress.rest.openapi: app.core app.core.feedback app.core.installed app.core.observability
    app.core.system app.ingress.access app.ingress.client_memory app.ingress.rest.home app.ingress.service
    app.ingress.tracing app.native app.protocol app.protocol.http app.protocol.observability app.routing
    app.settings
app.ingress.rest.reads: app.core app.core.config app.core.cost app.ingress.access app.ingress.rest.openapi
    app.ingress.service app.protocol app.routing app.tape nereid_client.tape
app.ingress.service: app.access app.core app.core.config app.core.cost app.core.drift app.core.feedback
    app.core.files app.core.observability app.core.rollout app.dispatch app.ensemble app.ingress.client_memory
    app.routing app.settings app.tape app.transport app.transport.channel nereid_client.comparison
    nereid_client.tape
app.ingress.tracing: app.core app.core.observability app.core.tape app.ingress.service app.routing
app.native: app.core app.core.installed
app.protocol: app.core app.core.feedback app.core.rollout
app.protocol.grpc: app.core app.core.drift app.core.feedback app.core.rollout app.native app.protocol
    app.protocol.http nereid_client.feedback nereid_client.services
app.protocol.http: app.core app.core.config app.core.rollout app.core.system app.native app.protocol
app.protocol.observability: app.core app.core.observability app.core.tape app.protocol.http
app.protocol.openai: app.core app.core.config app.core.system app.protocol app.protocol.http
    app.protocol.openai.tools
app.protocol.openai.responses: app.core app.core.config app.core.system app.protocol.openai
    app.protocol.openai.texts
app.protocol.openai.texts: app.core app.core.config app.protocol.http app.protocol.openai
    app.protocol.openai.tools
app.protocol.openai.tools: app.core.system
app.protocol.tfserving: app.core app.core.config app.protocol app.protocol.http
app.ray_adapter: app.core.files app.core.system app.ray_adapter.local app.ray_adapter.serve
app.ray_adapter.local: app.core.files app.core.system
app.ray_adapter.serve: app.core
app.rollout: app.core app.core.config app.core.observability app.core.rollout app.routing
    nereid_client.comparison nereid_client.tape
app.routing: app.core app.core.config app.core.cost app.core.drift app.core.feedback
    app.core.observability app.core.rollout app.core.system app.core.tape app.ray_adapter
    app.ray_adapter.serve app.transport app.transport.channel app.transport.loops app.transport.memory
app.settings: app.access app.core app.core.config app.core.cost app.core.files app.core.installed
    app.core.observability app.core.system app.native app.protocol app.settings.flag app.transport
app.settings.flag: app.access app.core.installed app.core.observability app.protocol
app.tape: app.core app.core.files app.core.tape app.routing app.settings app.transport.memory
    nereid_client.tape
app.transport:
app.transport.channel: app.core app.core.files app.core.system app.transport app.transport.loops
    app.transport.memory app.transport.wire
app.transport.loops: app.core.system
app.transport.memory: app.core app.transport
app.transport.wire: app.core app.core.config app.native app.transport app.transport.memory
backends: app.core app.core.config app.core.files app.core.observability app.core.system
backends.bytetrack: app.core app.core.config backends nereid_client.vision
backends.cpp: app.core app.core.config app.core.files app.core.installed app.core.observability backends
    backends.python.api
backends.cuda: app.core app.core.installed backends
backends.fil: app.core app.core.config backends backends.onnxruntime
backends.hosted: app.core app.core.installed backends backends.python.execution backends.python.worker
backends.onnxruntime: app.core app.core.config app.core.installed backends backends.cuda backends.openvino
backends.openvino: app.core app.core.config app.core.system backends
backends.packaged: app.core app.core.files app.core.system backends
backends.packaged.dali: backends backends.packaged
backends.packaged.llm: app.core app.core.files backends backends.openvino backends.packaged
    backends.packaged.llm.engine backends.packaged.llm.openvino
backends.packaged.llm.engine:
backends.packaged.llm.openvino: backends.openvino
backends.packaged.paddle: backends backends.packaged
backends.packaged.tvm: backends backends.packaged
backends.python: app.core app.core.config app.core.installed backends backends.python.api
    backends.python.execution backends.python.worker
backends.python.api: app.core app.core.installed backends
backends.python.execution: app.core app.core.installed backends backends.python.api
backends.python.worker: app.core app.core.installed app.core.system app.native app.transport
    app.transport.memory backends backends.python.api backends.python.execution
backends.pytorch: app.core app.core.config backends backends.cuda backends.registry
backends.pytorch.eager: app.core app.core.files app.core.system backends backends.python backends.pytorch
backends.registry: app.core app.core.config app.core.files app.core.installed backends backends.cpp
    backends.hosted
backends.rtsp: app.core app.core.installed app.core.system backends
backends.teaching: app.core app.core.config backends
backends.tensorflow: app.core app.core.config app.core.files backends
backends.tensorrt: app.core app.core.config app.core.files backends backends.cuda
deployments: app.core app.core.installed app.core.observability app.core.system app.transport
deployments.bls: app.core app.core.cost app.core.observability app.core.system app.cost app.dispatch
    app.ray_adapter app.ray_adapter.serve app.rollout app.routing app.transport.loops backends
    backends.python.api deployments deployments.execution
deployments.builder: app.core app.ray_adapter.serve
deployments.cost: app.core app.core.cost app.core.files app.core.observability app.settings
deployments.drift: app.core app.core.drift app.core.observability app.routing deployments.model_store
deployments.environments: app.core app.core.files backends backends.python.worker backends.registry
    deployments.model_store
deployments.event_loop_execution: app.transport.loops backends
deployments.execution: app.core app.core.config app.core.files app.core.observability app.core.system
    app.transport.loops backends deployments.event_loop_execution deployments.rate_limiting
deployments.manager: app.core app.core.cost app.core.drift app.core.feedback app.core.files
    app.core.observability app.core.rollout app.core.system app.ray_adapter app.ray_adapter.serve app.routing
    app.settings backends.registry deployments deployments.cost deployments.drift deployments.manager.loading
    deployments.manager.publishing deployments.manager.serve deployments.model_store deployments.residency
    deployments.rollout deployments.rollout.judging deployments.rollout.storage deployments.scaling
deployments.manager.loading: app.core app.core.config app.core.files app.core.observability
    app.core.rollout app.core.system app.routing app.settings backends.registry deployments deployments.drift
    deployments.manager.publishing deployments.model_store deployments.rollout deployments.rollout.states
deployments.manager.publishing: app.core app.core.config app.core.drift app.core.observability
    app.core.rollout app.core.tape app.routing deployments deployments.model_store deployments.rollout
deployments.manager.serve: app.core app.core.files app.core.rollout app.core.system app.ray_adapter
    app.ray_adapter.serve app.transport app.transport.channel deployments
deployments.model_process: app.core app.core.files app.core.installed app.core.observability app.core.system
    app.ray_adapter.local app.ray_adapter.serve app.transport app.transport.channel app.transport.loops
    deployments deployments.bls deployments.execution deployments.replica deployments.scheduling.dynamic
deployments.model_store: app.core app.core.config app.core.drift app.core.files app.core.system app.core.tape
    app.settings backends backends.registry deployments
deployments.rate_limiting: app.core app.core.config app.core.files
deployments.replica: app.cache app.core app.core.config app.core.cost app.core.files app.core.installed
    app.core.observability app.core.rollout app.core.system app.native app.ray_adapter.serve
    app.transport app.transport.channel app.transport.loops app.transport.memory app.transport.wire
    backends backends.python.api backends.registry deployments deployments.bls deployments.environments
    deployments.execution deployments.model_store deployments.rate_limiting deployments.scheduling
    deployments.scheduling.dynamic
deployments.residency: app.core app.core.system app.routing app.settings deployments
deployments.rollout: app.core app.core.cost app.core.feedback app.core.observability app.core.rollout
    app.core.system app.routing app.transport.channel deployments deployments.rollout.judging
    deployments.rollout.states deployments.rollout.storage
deployments.rollout.judging: app.core app.core.cost app.core.feedback app.core.rollout app.core.system
    nereid_client.comparison
deployments.rollout.states: app.core app.core.config app.core.installed app.core.rollout app.routing
    deployments.model_store deployments.rollout.judging nereid_client.comparison
deployments.rollout.storage: app.core app.core.files app.core.rollout app.core.system deployments
    deployments.rollout.judging deployments.rollout.states
deployments.scaling: app.core app.core.observability app.core.system app.ray_adapter
    app.ray_adapter.serve app.routing app.transport.channel deployments
deployments.scheduling: app.core app.core.observability deployments.execution
deployments.scheduling.dynamic: app.core app.core.observability app.core.system app.transport.loops backends
    backends.registry deployments deployments.execution deployments.scheduling
deployments.scheduling.registry: app.core app.core.observability backends deployments
    deployments.scheduling.dynamic deployments.scheduling.sequence
deployments.scheduling.sequence: app.core app.core.config app.core.observability deployments.execution
    deployments.scheduling deployments.scheduling.dynamic
deployments.serve_replica: app.core app.core.observability app.core.system app.ray_adapter
    app.ray_adapter.serve app.routing app.transport.loops backends.registry deployments deployments.bls
    deployments.execution deployments.model_process deployments.replica deployments.scheduling.dynamic
nereid:
nereid.backend: app.core backends
nereid.commands: app.access app.console app.core app.core.files app.core.observability app.core.system
    app.settings app.settings.flag backends.registry deployments.environments deployments.model_store nereid
    nereid.commands.new nereid.console nereid.engine nereid.migrate nereid_client.tools
    nereid_client.tools.analyze
nereid.commands.check: app.core app.core.config app.routing app.settings app.settings.flag backends
    backends.registry deployments.environments deployments.execution deployments.manager.loading
    deployments.manager.publishing deployments.model_store nereid.commands nereid_client.tools
nereid.commands.cost: app.core app.core.cost app.core.files nereid.commands nereid.console nereid_client.tools
    nereid_client.tools.perf.report
nereid.commands.drift: app.core app.core.config app.core.drift app.core.installed deployments.model_store
    nereid.commands nereid.offline nereid_client.tape nereid_client.tools
nereid.commands.new: app.core backends backends.pytorch backends.registry nereid.migrate nereid_client.tools
nereid.commands.rollout: app.core.rollout nereid.commands nereid_client.tools
nereid.commands.table:
nereid.commands.tape: app.core app.core.feedback app.core.installed app.feedback app.protocol app.tape
    nereid.commands nereid.offline nereid_client.tape nereid_client.tools
nereid.console: app.core app.core.files app.core.installed app.core.system app.ingress.rest.home app.native
    app.ray_adapter app.routing app.settings
nereid.deployments: deployments
nereid.engine: app.core app.core.config app.core.cost app.core.drift app.core.files app.core.observability
    app.core.rollout app.core.system app.cost app.dispatch app.drift app.ingress app.ingress.service
    app.ingress.tracing app.ray_adapter.serve app.routing app.settings app.transport app.transport.channel
    app.transport.loops backends.python.api deployments deployments.bls deployments.cost deployments.manager
    deployments.manager.loading deployments.manager.publishing deployments.model_store deployments.replica
    deployments.rollout deployments.rollout.states deployments.rollout.storage deployments.scheduling.dynamic
nereid.inprocess: app.core app.core.config app.core.installed app.core.observability app.ingress.metrics
    app.protocol.http app.settings app.settings.flag backends.python.api nereid nereid.engine
nereid.migrate: app.core app.protocol app.protocol.tfserving
nereid.offline: app.core app.core.installed app.protocol app.settings app.settings.flag nereid nereid.engine
    nereid_client.tape nereid_client.tools
nereid.optimise: app.core app.core.config app.core.system backends.registry deployments.model_store
    deployments.rollout.states nereid nereid.commands nereid.optimise.trials nereid_client
    nereid_client.comparison nereid_client.tape nereid_client.tools nereid_client.tools.analyze
    nereid_client.tools.perf nereid_client.tools.perf.command nereid_client.tools.perf.report
    nereid_client.tools.replay
nereid.optimise.trials: app.core app.core.config app.core.system backends.registry deployments.model_store
    nereid nereid.engine nereid_client.comparison nereid_client.tape
nereid.raised: app.core
nereid.server: app.settings app.settings.flag
nereid.testing: app.core app.core.config app.routing app.transport.loops backends backends.python.api
    deployments.bls nereid nereid.engine
nereid_client: nereid_client.feedback
nereid_client.comparison: nereid_client
nereid_client.feedback: nereid_client.services
nereid_client.services:
nereid_client.tape: nereid_client
nereid_client.text:
nereid_client.tools: nereid_client nereid_client.tape
nereid_client.tools.analyze: nereid_client nereid_client.tools nereid_client.tools.perf
    nereid_client.tools.perf.command nereid_client.tools.perf.generator nereid_client.tools.perf.report
nereid_client.tools.perf: nereid_client nereid_client.tape nereid_client.tools
    nereid_client.tools.perf.generator
nereid_client.tools.perf.command: nereid_client nereid_client.tools nereid_client.tools.perf
    nereid_client.tools.perf.generator nereid_client.tools.perf.report
nereid_client.tools.perf.generator: nereid_client nereid_client.tools
nereid_client.tools.perf.report: nereid_client.tools nereid_client.tools.perf
    nereid_client.tools.perf.generator
nereid_client.tools.replay: nereid_client nereid_client.comparison nereid_client.tape nereid_client.tools
    nereid_client.tools.perf nereid_client.tools.perf.command nereid_client.tools.perf.generator
    nereid_client.tools.perf.report
nereid_client.tools.plan: nereid_client nereid_client.tape nereid_client.tools nereid_client.tools.analyze
    nereid_client.tools.perf nereid_client.tools.perf.command nereid_client.tools.perf.generator
    nereid_client.tools.perf.report
nereid_client.vision:
"""
"""What each folder may import, besides itself; a module with a row of its own follows that instead."""

MAY_IMPORT = {
    row.partition(":")[0]: row.partition(":")[2].split()
    for row in TABLE.strip().replace("\n    ", " ").split("\n")
}
COMPOSITION = (
    "nereid.server.main",
    "nereid.server.launcher",
    "nereid.server.cli",
    "nereid.server.serve_run",
    "nereid.__main__",
    "nereid.commands",
)
"""Modules that may import anything, and that nothing may import."""

MAY_NOT_IMPORT = {
    "app.core": ("ray", "fastapi"),
    "app.protocol": ("ray", "fastapi", "socket", "asyncio"),
    "app.transport": ("ray", "fastapi", "grpc"),
    "app.cache": ("ray", "fastapi", "grpc"),
    "app.routing": ("fastapi", "grpc"),
    "backends": ("ray", "fastapi", "grpc"),
    "deployments": ("fastapi", "grpc"),
}
"""Packages that a folder and those below it do without."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the product, by name."""
    found = {}
    for tree in TREES:
        for path in sorted((ROOT / tree).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removeprefix("client.").removesuffix(".__init__")] = path
    return found


@cache
def imports(name: str) -> frozenset[str]:
    """Everything that a module imports, wherever in it; a module of ours by its full name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(modules()[name].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name}: relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(one if one in modules() else node.module for one in full)
    return frozenset(found)


def folder(name: str) -> str:
    """The folder of one of our modules."""
    path = modules()[name]
    return ".".join(path.parent.relative_to(ROOT).parts).removeprefix("client.")


def test_every_folder_has_a_row() -> None:
    rows = {name for name in MAY_IMPORT if name not in modules() or modules()[name].name == "__init__.py"}
    assert {folder(name) for name in modules() if name not in COMPOSITION} - {"app"} == rows


@pytest.mark.parametrize("name", [name for name in modules() if name not in (*COMPOSITION, *TREES)])
def test_direction(name: str) -> None:
    allowed = {folder(name), *MAY_IMPORT.get(name, MAY_IMPORT[folder(name)])}
    for imported in imports(name):
        place = f"{name} imports {imported}"
        if imported in modules():
            assert folder(imported) in allowed and imported not in COMPOSITION, place
        for above, banned in MAY_NOT_IMPORT.items():
            if name == above or name.startswith(above + "."):
                assert not any(imported == one or imported.startswith(one + ".") for one in banned), place


def circles(arrows: Mapping[str, Iterable[str]]) -> set[frozenset[str]]:
    """Find the groups of names that reach each other."""

    @cache
    def reached(name: str) -> frozenset[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            new = set(arrows.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return frozenset(found)

    return {
        frozenset(other for other in reached(name) if name in reached(other))
        for name in arrows
        if name in reached(name)
    }


def imports_by_string(name: str) -> set[str]:
    """Modules of ours whose dotted names are strings in a module, which may import them."""
    nodes = ast.walk(ast.parse(modules()[name].read_text()))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts & modules().keys() - {name} if "." in text}


def test_modules_do_not_import_each_other() -> None:
    """Imports for annotations alone count too, and those by string."""
    found = circles({name: imports(name) & modules().keys() | imports_by_string(name) for name in modules()})
    assert not found, f"modules import each other: {[sorted(circle) for circle in found]}"


def test_folders_do_not_import_each_other() -> None:
    found = circles(MAY_IMPORT)
    assert not found, f"folders import each other: {[sorted(circle) for circle in found]}"


def test_a_replica_starts_without_what_few_models_need() -> None:
    """Each costs every load CPU time: calls to other models, and clients of remote storage."""
    unwanted = [
        "deployments.bls.service",
        "app.ensemble",
        "backends.python",
        "deployments.model_store.storage",
        "fsspec",
    ]
    module = "deployments.serve_replica.deployment"
    code = f"import sys, {module}; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr[-2000:]
