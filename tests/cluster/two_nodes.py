"""Run as a program: a cluster of two raylets on this machine, until standard input closes.

A program of its own because Ray reads RAY_AUTH_MODE when it is imported.
"""

import os
import sys
import tempfile

from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"first": 1}})
# Nodes share no temporary files; the path is short because sockets are made below it.
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="n", dir="/tmp")
cluster.add_node(num_cpus=4, resources={"second": 1})
print("ADDRESS", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
