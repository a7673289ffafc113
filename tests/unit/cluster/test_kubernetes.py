"""The manifests of `cluster/kubernetes`, checked as an API server, Ray Serve and the server would."""

import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from nereid.server.cli import parse
from tests.server import ROOT
from tests.unit.cluster.manifests import Manifest, containers, pod_templates, read, refusals, the
from tests.unit.cluster.ray_files import deployed, pod_environment

FOLDER: Final = ROOT / "cluster/kubernetes"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RAY_SERVICE: Final = read(FOLDER / "rayservice.yaml")
SERVING_RUNTIME: Final = read(FOLDER / "servingruntime.yaml")
ALL: Final = [*RAY_SERVICE, *SERVING_RUNTIME]


def name(manifest: Manifest) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def serve_config(manifest: Manifest) -> Any:
    return yaml.safe_load(manifest["spec"]["serveConfigV2"])


def settings(config: Any, models: Path) -> ServerSettings:
    (application,) = config["applications"]
    return from_args(application["args"] | {"model_repository": str(models)})


@pytest.mark.parametrize("manifest", ALL, ids=name)
def test_manifest_is_accepted(manifest: Manifest) -> None:
    assert refusals(manifest) == []


def rename(key: str) -> Callable[[Any], None]:
    def change(parent: Any) -> None:
        parent[f"{key}s"] = parent.pop(key)

    return change


def replace(key: str, value: Any) -> Callable[[Any], None]:
    return lambda parent: parent.update({key: value})


def at(manifest: Manifest, *path: str | int) -> Any:
    found: Any = manifest
    for step in path:
        found = found[step]
    return found


CLUSTER: Final = ("spec", "rayClusterConfig")
WORKER: Final = (*CLUSTER, "workerGroupSpecs", 0)


@pytest.mark.parametrize(
    ("kind", "path", "change", "said"),
    [
        ("RayService", ("spec",), rename("excludeHeadPodFromServeSvc"), "excludeHeadPodFromServeSvcs"),
        ("RayService", CLUSTER, rename("authOptions"), "authOptionss"),
        ("RayService", WORKER, replace("replicas", "2"), "replicas: '2' is not of type 'integer'"),
        ("RayService", (*WORKER, "rayStartParams"), replace("num-cpus", 0), "0 is not of type 'string'"),
        ("RayService", (*WORKER, "template", "spec"), rename("securityContext"), "securityContexts"),
        (
            "RayService",
            (*WORKER, "template", "spec", "containers", 0, "readinessProbe"),
            replace("periodSeconds", "2"),
            "periodSeconds: '2'",
        ),
        ("Service", ("spec", "ports", 0), rename("targetPort"), "targetPorts"),
        ("PodDisruptionBudget", ("spec",), rename("minAvailable"), "minAvailables"),
        ("ServingRuntime", ("spec",), replace("protocolVersions", ["v3"]), "'v3' is not one of"),
        ("ServingRuntime", ("spec", "containers", 0), rename("args"), "argss"),
    ],
)
def test_mistake_is_refused(
    kind: str, path: tuple[str | int, ...], change: Callable[[Any], None], said: str
) -> None:
    wrong = deepcopy(the(kind, ALL))
    change(at(wrong, *path))
    assert any(said in refusal for refusal in refusals(wrong)), refusals(wrong)


def test_ray_service_runs_what_serve_deploy_runs(tmp_path: Path) -> None:
    config = serve_config(the("RayService", RAY_SERVICE))
    assert config == yaml.safe_load((ROOT / "cluster/serve.yaml").read_text())
    assert deployed(config) == config
    assert settings(config, tmp_path).http.address == "0.0.0.0"


def test_mistakes_in_the_serve_configuration_are_refused(tmp_path: Path) -> None:
    config = serve_config(the("RayService", RAY_SERVICE))
    wrong = deepcopy(config)
    rename("external_scaler_enabled")(wrong["applications"][0])
    assert deployed(wrong) != wrong
    with pytest.raises(SettingsError, match="http_addresss"):
        rename("http_address")(config["applications"][0]["args"])
        settings(config, tmp_path)


def test_every_ray_node_has_the_settings_of_ray() -> None:
    for container in containers(the("RayService", RAY_SERVICE)):
        assert {each["name"]: each["value"] for each in container["env"]} == pod_environment(drain_s=60)


def test_versions_are_those_of_the_project() -> None:
    assert (
        f"ray[serve]=={the('RayService', RAY_SERVICE)['spec']['rayClusterConfig']['rayVersion']}"
        in (PROJECT["dependencies"])
    )
    images = {each["image"] for manifest in ALL for each in containers(manifest)}
    assert images == {f"nereid:{PROJECT['version']}"}


def test_pods_end_in_peace(tmp_path: Path) -> None:
    manifest = the("RayService", RAY_SERVICE)
    exit_timeout = settings(serve_config(manifest), tmp_path).server.exit_timeout_s
    for template in pod_templates(manifest):
        (container,) = template["spec"]["containers"]
        before = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
        variables = {each["name"]: each["value"] for each in container["env"]}
        drain = int(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        assert before == 5 and drain >= exit_timeout + 30
        assert template["spec"]["terminationGracePeriodSeconds"] > before + drain


def test_service_reaches_the_ports_of_the_server(tmp_path: Path) -> None:
    manifest, service = the("RayService", RAY_SERVICE), the("Service", RAY_SERVICE)
    server = settings(serve_config(manifest), tmp_path)
    _, worker = pod_templates(manifest)
    (container,) = worker["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"serve": server.http.port, "grpc": server.grpc.port, "http-metrics": server.metrics.port}
    assert [ports[each["targetPort"]] for each in service["spec"]["ports"]] == [
        each["port"] for each in service["spec"]["ports"]
    ]
    assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": "serve"}


def test_service_and_budget_mean_the_workers() -> None:
    head, worker = (each["metadata"]["labels"] for each in pod_templates(the("RayService", RAY_SERVICE)))
    selector = the("Service", RAY_SERVICE)["spec"]["selector"]
    assert selector.items() <= worker.items() and not selector.items() <= head.items()
    budget = the("PodDisruptionBudget", RAY_SERVICE)["spec"]
    assert budget["selector"]["matchLabels"] == selector
    (group,) = the("RayService", RAY_SERVICE)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert budget["minAvailable"] < group["minReplicas"]


@pytest.mark.parametrize("manifest", ALL, ids=name)
def test_containers_are_restricted(manifest: Manifest) -> None:
    for template in pod_templates(manifest):
        for container in template["spec"]["containers"]:
            security = template["spec"].get("securityContext", {}) | container["securityContext"]
            assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert {"/tmp", "/home/nereid"} <= {each["mountPath"] for each in container["volumeMounts"]}


def test_serving_runtime_starts_the_server_where_kserve_looks(tmp_path: Path) -> None:
    (container,) = containers(the("ServingRuntime", SERVING_RUNTIME))
    assert container["args"][0] == "--model-repository=/mnt/models"
    arguments = [f"--model-repository={tmp_path}", *container["args"][1:]]
    server = parse(arguments)
    assert [each["containerPort"] for each in container["ports"]] == [server.http.port] == [8080]
    assert container["readinessProbe"]["httpGet"]["port"] == 8080
    monitoring = the("ServingRuntime", SERVING_RUNTIME)["spec"]["annotations"]
    assert monitoring["prometheus.kserve.io/port"] == str(server.metrics.port)
    with pytest.raises(SettingsError, match="http-prt"):
        parse([each.replace("http-port", "http-prt") for each in arguments])
