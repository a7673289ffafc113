"""Run as a program: a cluster of two raylets on this machine, until standard input closes.

A program of its own because Ray reads RAY_AUTH_MODE when it is imported.
"""

import os
import shutil
import sys
import tempfile

from ray.cluster_utils import Cluster

os.environ["RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"] = "nereid.controller:prepare"  # as in cluster/ray.env
# Nodes share no temporary files; the path is short because sockets are made below it.
private = {"TMPDIR": tempfile.mkdtemp(prefix="n", dir="/tmp")}
os.environ["XDG_STATE_HOME"] = private["TMPDIR"]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"first": 1}})
second = cluster.add_node(num_cpus=4, resources={"second": 1}, env_vars=private)
print("ADDRESS", cluster.address, flush=True)
for command in sys.stdin:
    if command == "lose the second node\n":
        cluster.remove_node(second, allow_graceful=False)
    elif command == "add a node\n":
        cluster.add_node(num_cpus=4, resources={"second": 1}, env_vars=private)
cluster.shutdown()  # type: ignore[no-untyped-call]
shutil.rmtree(private["TMPDIR"], ignore_errors=True)
