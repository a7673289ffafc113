"""Private names, signatures and environment variables of Ray that `app/ray_adapter` relies on.

When one of these tests fails after an upgrade of Ray, its message says what is missing and what needs it.
"""

import inspect
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import ray

from deployments import builder

ROUTER = "serve.router.DirectRouter"
JOIN = "cluster.join_or_start"
RUN = "serve.applications.run_application"
OUTPUT = "worker_output.divert_ray_output"
HELPERS = "local.helpers.without_helpers"
HEALTH = "cluster_health.node_parts"
STAND_IN = "local.stand_in"
FORK = "local.fork_client and local.fork_server"
LEAN = "local.lean_serve"
PACE = "serve.controller_pace.pace_controller"
LOCK = "the lock of serve.applications.run_application"

SIGNATURES = [
    (
        "ray.serve.handle:DeploymentHandle.__init__",
        ("self", "deployment_name", "app_name"),
        "serve.handles.new_handle",
    ),
    ("ray.serve.handle:DeploymentHandle._init", ("self",), "serve.handles.connect"),
    ("ray.serve.handle:DeploymentHandle.shutdown", ("self",), "every caller of serve.handles.new_handle"),
    ("ray.serve.deployment:Deployment.options", ("version", "_internal"), "serve.applications.versioned"),
    (
        "ray.serve:run_many",
        ("targets", "wait_for_ingress_deployment_creation", "wait_for_applications_running"),
        RUN,
    ),
    ("ray.serve:delete", ("name", "_blocking"), "serve.applications.delete_application"),
    ("ray.serve:RunTarget.__init__", ("target", "name", "route_prefix", "external_scaler_enabled"), RUN),
    ("ray.serve.context:_get_global_client", (), "serve.applications.scale_deployment"),
    (
        "ray.serve._private.controller:ServeController.update_deployment_replicas",
        ("self", "deployment_id", "target_num_replicas"),
        "serve.applications.scale_deployment",
    ),
    (
        "ray.serve._private.request_router.pow_2_router:PowerOfTwoChoicesRequestRouter.update_replicas",
        ("self", "replicas"),
        ROUTER,
    ),
    (
        "ray.serve.config:RequestRouterConfig._serialize_request_router_cls",
        ("self",),
        LOCK,
    ),
    (
        "ray._private.arrow_serialization:_register_custom_datasets_serializers",
        ("serialization_context",),
        LEAN,
    ),
    ("ray.job_config:JobConfig.__init__", ("self", "_client_job"), JOIN),
    ("ray.util:get_node_ip_address", (), "node.listen_host"),
    ("ray:nodes", (), "node.gpus_by_node"),
    ("ray._private.node:Node.start_monitor", ("self",), HELPERS),
    ("ray._private.node:Node.start_log_monitor", ("self",), HELPERS),
    ("ray._private.node:Node.start_api_server", ("include_dashboard", "raise_on_failure"), HELPERS),
    (
        "ray._private.log_monitor:LogMonitor.__init__",
        ("self", "node_ip_address", "logs_dir", "gcs_client", "is_proc_alive_fn"),
        HELPERS,
    ),
    ("ray._private.log_monitor:LogMonitor.update_log_filenames", ("self",), HELPERS),
    ("ray._private.log_monitor:LogMonitor.open_closed_files", ("self",), HELPERS),
    ("ray._private.log_monitor:LogMonitor.check_log_files_and_publish_updates", ("self",), HELPERS),
    ("ray._private.grpc_utils:init_grpc_channel", ("address", "options"), HEALTH),
    (
        "ray.experimental.internal_kv:_internal_kv_put",
        ("key", "value", "overwrite", "namespace"),
        "claim.claim_cluster",
    ),
    ("ray.experimental.internal_kv:_internal_kv_get", ("key", "namespace"), "claim.claim_cluster"),
    ("ray.experimental.internal_kv:_internal_kv_del", ("key", "namespace"), "claim.release_cluster"),
    ("ray._private.state:jobs", (), "claim.claim_cluster"),
    ("ray.serve.scripts:cli.main", ("args", "standalone_mode"), "cluster.run_serve_cli"),
    ("ray._private.worker:get_dashboard_url", (), "cluster_environment.cluster_addresses"),
    ("ray.serve.scripts:cli_logger.print", ("msg",), "cluster.run_serve_cli"),
    ("ray.serve.scripts:cli_logger.success", ("msg",), "cluster.run_serve_cli"),
    ("ray._private.worker:print_to_stdstream", ("data", "ignore_prefix"), OUTPUT),
    (
        "ray._private.ray_logging:global_worker_stdstream_dispatcher.add_handler",
        ("name", "handler"),
        OUTPUT,
    ),
    ("ray._private.ray_logging:global_worker_stdstream_dispatcher.remove_handler", ("name",), OUTPUT),
]
FIELDS = [
    (
        "ray.serve.request_router:RunningReplica",
        ("replica_id", "replica_metadata"),
        ROUTER,
    ),
    ("ray.serve._private.common:ReplicaID", ("unique_id",), ROUTER),
    ("ray.serve._private.common:DeploymentID", ("name", "app_name"), ROUTER),
    (
        "ray._private.node:Node",
        ("node_id", "session_name", "gcs_address", "node_ip_address", "node_manager_port"),
        HEALTH,
    ),
    ("ray.serve.context:ReplicaContext", ("deployment", "app_name"), "node.replica_deployment"),
    ("ray.serve.schema:ApplicationStatusOverview", ("status", "message", "deployments"), "the manager"),
    ("ray.serve.schema:DeploymentStatusOverview", ("message", "replica_states"), "the manager"),
]
TEXTS = [
    (
        "serve/_private/request_router/request_router.py",
        "self._deployment_id =",
        ROUTER,
    ),
    ("serve/_private/router.py", "self._asyncio_router = AsyncioRouter(", "serve.handles.connect"),
    ("serve/_private/router.py", "self._enable_strict_max_ongoing_requests =", "serve.handles.connect"),
    ("serve/_private/router.py", "if not with_rejection:", "serve.handles.connect"),
    ("serve/_private/constants.py", '"record_replica_metadata"', "the hook of replicas and ingresses"),
    ("serve/config.py", "cloudpickle.unregister_pickle_by_value", LOCK),
    ("_private/services.py", "--dashboard_agent_command={}", STAND_IN),
    ("_private/services.py", "--runtime_env_agent_command={}", STAND_IN),
    ("_private/services.py", "--runtime-env-agent-port=", STAND_IN),
    ("_raylet.so", "metrics_agent_port", STAND_IN),
    ("_raylet.so", "metrics_export_port", STAND_IN),
    ("_raylet.so", "dashboard_agent_listen_port", STAND_IN),
    ("_raylet.so", "runtime_env_agent_port", STAND_IN),
    ("_private/services.py", "--python_worker_command=", FORK),
    ("_private/workers/setup_worker.py", '"--serialized-runtime-env-context"', FORK),
    ("_private/workers/setup_worker.py", '"--language"', FORK),
    ("_private/workers/default_worker.py", '"--worker-id"', FORK),
    ("_raylet.so", "RAY_RAYLET_PID", FORK),
    ("_raylet.so", "RAY_JOB_ID", FORK),
    ("_raylet.so", "get_draining_nodes", "node.gpus_by_node"),
    ("dashboard/consts.py", "RAY_enable_pipe_based_agent_to_parent_health_check", STAND_IN),
    ("core/src/ray/raylet/raylet", "enable_pipe_based_agent_to_parent_health_check", STAND_IN),
    ("core/src/ray/raylet/raylet", "agent_register_timeout_ms", "local.cluster.start_cluster"),
    (
        "core/src/ray/raylet/raylet",
        "raylet_client_connect_timeout_milliseconds",
        "local.cluster.start_cluster",
    ),
    ("core/src/ray/raylet/raylet", "raylet_client_num_connect_attempts", "local.cluster.start_cluster"),
    ("core/src/ray/raylet/raylet", "raylet_check_gc_period_milliseconds", "local.cluster.start_cluster"),
    ("core/src/ray/raylet/raylet", "local_fs_monitor_interval_ms", "local.cluster.start_cluster"),
    ("core/src/ray/raylet/raylet", "kill_idle_workers_interval_ms", "local.cluster.start_cluster"),
    ("core/src/ray/raylet/raylet", "memory_monitor_refresh_ms", "local.cluster.start_cluster"),
    (
        "core/src/ray/gcs/gcs_server",
        "gcs_pull_resource_loads_period_milliseconds",
        "local.cluster.start_cluster",
    ),
    ("core/src/ray/gcs/gcs_server", "io_context_monitor_probe_interval_ms", "local.cluster.start_cluster"),
    ("_raylet.so", "event_stats", JOIN),
    ("_private/services.py", "--node_id={node_id}", HEALTH),
    ("_private/services.py", "--session-name={session_name}", HEALTH),
    ("serve/_private/constants.py", 'SERVE_CONTROLLER_NAME = "SERVE_CONTROLLER_ACTOR"', HEALTH),
    ("serve/_private/controller.py", "def get_pid(self)", HEALTH),
    ("serve/_private/constants.py", "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS", "local.cluster.start_cluster"),
    ("_private/ray_constants.py", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", JOIN),
    ("_private/services.py", "if not ray_constants.ENABLE_RAY_CLUSTER:", JOIN),
    ("_private/node.py", "RAY_gcs_server_port_wait_time_s", JOIN),
    ("_raylet.so", "raylet_start_wait_time_s", JOIN),
    ("_raylet.so", "worker_niceness", JOIN),
    ("_common/utils.py", '"ray_current_cluster"', JOIN),
    ("_common/utils.py", '"RAY_TMPDIR"', JOIN),
    ("_private/authentication/authentication_token_setup.py", '"RAY_AUTH_MODE"', "token.require_token"),
    ("_private/authentication/authentication_token_setup.py", '".ray" / "auth_token"', "token.require_token"),
    ("_private/services.py", "process = ConsolePopen(", "local.cluster.start_cluster"),
    ("serve/_private/constants.py", '"RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"', JOIN),
    ("serve/_private/controller.py", "call_function_from_import_path(RAY_SERVE_CONTROLLER", JOIN),
    ("serve/_private/controller.py", "await asyncio.sleep(CONTROL_LOOP_INTERVAL_S)", PACE),
    ("serve/_private/controller.py", "await self.run_control_loop_step(", PACE),
    ("serve/_private/deployment_state.py", "self._in_transition = True", PACE),
    ("serve/_private/deployment_state.py", "self._deployment_states: Dict", PACE),
    ("serve/_private/deployment_state.py", "self._health_check_ref: Optional[ObjectRef] = None", PACE),
    ("serve/_private/deployment_state.py", "self._last_health_check_time: float = 0.0", PACE),
    ("serve/_private/deployment_state.py", "self.health_check_period_s * random.uniform(0.9, 1.1)", PACE),
    ("serve/_private/deployment_state.py", "self._replicas: ReplicaStateContainer", PACE),
    ("serve/_private/deployment_state.py", "self._actor = ActorReplicaWrapper(", PACE),
    ("serve/_private/application_state.py", "self._application_states: Dict", PACE),
    ("serve/_private/controller.py", "self.kv_store.put(SHUTDOWN_IN_PROGRESS_KEY", PACE),
    ("serve/_private/controller.py", "self.kv_store = RayInternalKVStore(", PACE),
    ("serve/_private/client.py", "time.sleep(CLIENT_POLLING_INTERVAL_S)", "serve.applications.ask_often"),
    ("_raylet.so", "enable_metrics_collection", JOIN),
    ("_raylet.so", "RAY_AUTH_TOKEN_PATH", "token.require_token"),
]


def dotted(name: str) -> str:
    return f"{name.replace(':', '.')} of Ray {ray.__version__}"


def resolve(name: str, user: str) -> Any:
    """Import `module:attribute.path`; fail with a sentence when it is absent."""
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError:
        pytest.fail(f"Ray {ray.__version__} has no module {module}, which {user} needs")
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            pytest.fail(f"Ray {ray.__version__} has no {name.replace(':', '.')}, which {user} needs")
        found = getattr(found, attribute)
    return found


def check_signature(name: str, parameters: Sequence[str], user: str) -> None:
    """Fail when parameters are missing, or when one that is not listed has no default."""
    known = inspect.signature(resolve(name, user)).parameters
    missing = [each for each in parameters if each not in known]
    empty, variable = (
        inspect.Parameter.empty,
        (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD),
    )
    required = [p.name for p in known.values() if p.default is empty and p.kind not in variable]
    required = [each for each in required if each not in (*parameters, "self")]
    if missing or required:
        pytest.fail(
            f"{dotted(name)} lacks the parameters {missing} or now requires {required}; "
            f"{user} calls it with {list(parameters)}"
        )


@pytest.mark.parametrize(("name", "parameters", "user"), SIGNATURES)
def test_signature_is_the_expected_one(name: str, parameters: Sequence[str], user: str) -> None:
    check_signature(name, parameters, user)


@pytest.mark.parametrize(("name", "fields", "user"), FIELDS)
def test_class_has_the_expected_attributes(name: str, fields: Sequence[str], user: str) -> None:
    found = resolve(name, user)
    known = {*dir(found), *getattr(found, "__annotations__", {}), *getattr(found, "model_fields", {})}
    missing = [each for each in fields if each not in known]
    assert not missing, (
        f"{name.replace(':', '.')} of Ray {ray.__version__} has no {missing}, which {user} needs"
    )


@pytest.mark.parametrize(("file", "text", "user"), TEXTS)
def test_source_still_has_the_name(file: str, text: str, user: str) -> None:
    path = Path(ray.__file__).parent / file
    assert path.exists(), f"Ray {ray.__version__} has no file {file}, where {user} expects {text}"
    assert text.encode() in path.read_bytes(), (
        f"{file} of Ray {ray.__version__} lacks {text}, which {user} needs"
    )


def test_absent_name_is_reported_in_a_sentence() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"has no ray\.serve\._gone, which a test needs"):
        resolve("ray.serve:_gone", "a test")


def test_changed_signature_is_reported_in_a_sentence() -> None:
    text = r"ray\.nodes of Ray .* lacks the parameters \['gone'\] or now requires \[\]; a test calls it"
    with pytest.raises(pytest.fail.Exception, match=text):
        check_signature("ray:nodes", ("gone",), "a test")


def test_pickled_router_needs_nothing_of_ours() -> None:
    """Processes of users unpickle it, which may have another `app`."""
    config = builder.ROUTER_CONFIG
    assert config.request_router_class == builder.ROUTER
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).__name__, 'app' in sys.modules)"
    pickled = config.get_serialized_request_router_cls()
    assert pickled is not None
    done = subprocess.run([sys.executable, "-I", "-c", code], input=pickled, capture_output=True, timeout=100)
    assert done.stdout == b"DirectRouter False\n", done.stderr.decode()
