"""Reads manifests of Kubernetes and says what an API server would refuse in them.

Core kinds are checked against the schemas in the package `kubernetes-validate`. Of custom kinds, the Pods
inside are, and the fields around them against the short schemas below, which know what `cluster/` uses. No
package has the definitions of KubeRay, KServe and the others; `make check-cluster CRDS=directory` uses files
of them too.
"""

import json
import os
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Final

import yaml
from jsonschema import Draft202012Validator, ValidationError
from referencing import Registry, Resource

_SCHEMAS: Final = files("kubernetes_validate") / "kubernetes-json-schema/v1.37.0-local-strict"
Manifest = dict[str, Any]


def read(path: Path) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def the(kind: str, manifests: list[Manifest]) -> Manifest:
    """The only manifest of a kind."""
    (found,) = [each for each in manifests if each["kind"] == kind]
    return found


def refusals(manifest: Manifest) -> list[str]:
    """What is wrong with a manifest: unknown fields, missing ones, values of wrong types."""
    kind = manifest["kind"]
    if kind not in _CUSTOM:
        return _core_refusals(manifest)
    schemas = [_CUSTOM[kind], *_definitions(kind, manifest["apiVersion"])]
    found = [error for schema in schemas for error in Draft202012Validator(schema).iter_errors(manifest)]
    pods = [_core_refusals(_as_manifest(template)) for template in pod_templates(manifest)]
    return [*map(_text, found), *chain(*pods)]


def pod_templates(manifest: Manifest) -> list[Any]:
    """The templates of a manifest's Pods."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
        return [group["template"] for group in groups]
    if manifest["kind"] == "ServingRuntime":
        return [{"spec": {name: spec[name] for name in ("containers", "volumes")}}]
    return [spec["template"]] if "template" in spec else []


def containers(manifest: Manifest) -> list[Any]:
    return [each for template in pod_templates(manifest) for each in template["spec"]["containers"]]


def _as_manifest(template: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}


def _core_refusals(manifest: Manifest) -> list[str]:
    validator = _core_validator(manifest["kind"].lower(), manifest["apiVersion"])
    return [_text(error) for error in validator.iter_errors(manifest)]


@cache
def _core_validator(kind: str, api_version: str) -> Any:
    """A validator by the package's files; its own function reads them, 2 MB, for each manifest anew."""
    group, _, version = api_version.rpartition("/")
    name = "-".join(filter(None, (kind, group.partition(".")[0], version)))
    schema = json.loads((_SCHEMAS / f"{name}.json").read_text())
    return Draft202012Validator(schema, registry=_core_definitions())


@cache
def _core_definitions() -> Any:
    definitions = json.loads((_SCHEMAS / "_definitions.json").read_text())
    return Resource.from_contents(definitions) @ Registry()


def _text(error: ValidationError) -> str:
    return f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def _definitions(kind: str, api_version: str) -> list[Any]:
    """The schemas of a custom kind by its project, if CRDS names a directory, which must have it."""
    directory = os.environ.get("CRDS", "")
    known = _all_definitions(directory)
    found = [
        each for group, name, version, each in known if (name, f"{group}/{version}") == (kind, api_version)
    ]
    if directory and not found:
        raise LookupError(f"no definition of {kind} of {api_version} in '{directory}'")
    return found


@cache
def _all_definitions(directory: str) -> list[tuple[str, str, str, Any]]:
    files = Path(directory).rglob("*.yaml") if directory else ()
    documents = [document for file in files for document in yaml.load_all(file.read_text(), yaml.CSafeLoader)]
    specs = [each["spec"] for each in documents if each and each["kind"] == "CustomResourceDefinition"]
    return [
        (spec["group"], spec["names"]["kind"], version["name"], _strict(version["schema"]["openAPIV3Schema"]))
        for spec in specs
        for version in spec["versions"]
    ]


def _strict(schema: Any) -> Any:
    """A schema that refuses fields it does not name, which an API server drops or refuses."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(each) for name, each in schema.items()}
    if schema.get("x-kubernetes-int-or-string") is True:
        strict |= {"type": ["integer", "string"]}
        strict.pop("anyOf", None)
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def _object(required: str, **fields: Any) -> dict[str, Any]:
    """The schema of an object that has no other fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def _custom(api_version: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": api_version},
        kind=_TEXT,
        metadata=_object("name", name=_TEXT, labels=_TEXTS, annotations=_TEXTS, namespace=_TEXT),
        spec=spec,
    )


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "boolean"}
_ANY: Final = {"type": "object"}
_TEXTS: Final = {"type": "object", "additionalProperties": _TEXT}
_LIST: Final = {"type": "array", "minItems": 1}
_SELECTOR: Final = _object("matchLabels", matchLabels=_TEXTS)
_KEY: Final = _object("name key", name=_TEXT, key=_TEXT)
_FROM_SECRET: Final = _object("valueFrom", valueFrom=_object("secretKeyRef", secretKeyRef=_KEY))
_RAY_CLUSTER: Final = _object(
    "rayVersion headGroupSpec workerGroupSpecs authOptions",
    rayVersion=_TEXT,
    authOptions=_object("mode", mode={"const": "token"}, secretName=_TEXT),
    gcsFaultToleranceOptions=_object(
        "backend",
        backend={"enum": ["redis", "rocksdb"]},
        redisAddress=_TEXT,
        redisPassword=_FROM_SECRET,
        storage=_object("size", size=_TEXT, storageClassName=_TEXT),
    ),
    enableInTreeAutoscaling=_FLAG,
    autoscalerOptions=_object("version", version={"enum": ["v1", "v2"]}, securityContext=_ANY),
    headGroupSpec=_object("rayStartParams template", rayStartParams=_TEXTS, template=_ANY),
    workerGroupSpecs=_LIST
    | {
        "items": _object(
            "groupName replicas minReplicas maxReplicas rayStartParams template",
            groupName=_TEXT,
            replicas=_NUMBER,
            minReplicas=_NUMBER,
            maxReplicas=_NUMBER,
            rayStartParams=_TEXTS,
            template=_ANY,
        )
    },
)
_CUSTOM: Final[dict[str, Any]] = {
    "RayService": _custom(
        "ray.io/v1",
        _object(
            "serveConfigV2 rayClusterConfig",
            serveConfigV2=_TEXT,
            upgradeStrategy=_object("type", type={"enum": ["NewCluster", "None"]}),
            rayClusterDeletionDelaySeconds=_NUMBER,
            excludeHeadPodFromServeSvc=_FLAG,
            rayClusterConfig=_RAY_CLUSTER,
        ),
    ),
    "ServingRuntime": _custom(
        "serving.kserve.io/v1alpha1",
        _object(
            "supportedModelFormats protocolVersions containers",
            annotations=_TEXTS,
            supportedModelFormats=_LIST | {"items": _object("name version", name=_TEXT, version=_TEXT)},
            protocolVersions=_LIST | {"items": {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}},
            containers=_LIST,
            volumes=_LIST,
        ),
    ),
    "PrometheusRule": _custom(
        "monitoring.coreos.com/v1",
        _object("groups", groups=_LIST | {"items": _object("name rules", name=_TEXT, rules=_LIST)}),
    ),
    "PodMonitor": _custom(
        "monitoring.coreos.com/v1",
        _object(
            "selector podMetricsEndpoints",
            selector=_SELECTOR,
            podMetricsEndpoints=_LIST
            | {
                "items": _object(
                    "port path interval",
                    port=_TEXT,
                    path=_TEXT,
                    interval=_TEXT,
                    relabelings=_LIST,
                    authorization=_object("credentials", credentials=_KEY),
                )
            },
        ),
    ),
    "ScaledObject": _custom(
        "keda.sh/v1alpha1",
        _object(
            "scaleTargetRef triggers",
            scaleTargetRef=_object("name", name=_TEXT),
            minReplicaCount=_NUMBER,
            maxReplicaCount=_NUMBER,
            triggers=_LIST | {"items": _object("type metadata", type=_TEXT, metadata=_TEXTS)},
        ),
    ),
}
