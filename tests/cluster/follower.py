"""Run as a program: follows the repository manager as an ingress does, and says so after the first table."""

import ray

from app.ray_adapter.serve.handles import open_handle
from app.routing.table_bytes import decode_table

ray.init(log_to_driver=False)
manager = open_handle("repository-manager", "nereid")
number = 0
while True:
    if answer := manager.watch.remote("follower", number).result():
        number = decode_table(answer).number
        print("TABLE", number, flush=True)
