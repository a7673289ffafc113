"""A Serve server whose deployments do nothing, in a cluster that is started as Nereid starts its own.

What it costs while idle is what Ray costs Nereid: no design with a deployment for each model costs less.

    python -m benchmarks.bare_serve --port 8100 --deployments 22
"""

import argparse
from http.server import BaseHTTPRequestHandler, HTTPServer

from app.ray_adapter.cluster import join_or_start


class Nothing:
    """A deployment that is never called."""


class Ready(BaseHTTPRequestHandler):
    """Answers that the deployments run."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--deployments", type=int, required=True)
    arguments = parser.parse_args()
    join_or_start(loopback=True, import_from_cwd=False, configure_logging=False, include_dashboard=False)
    from ray import serve  # reads the environment that is set above

    from deployments.builder import QUIET

    serve.start(proxy_location="Disabled")
    deployment = serve.deployment(ray_actor_options={"num_cpus": 0}, logging_config=QUIET)(Nothing)
    names = [f"nothing_{number}" for number in range(arguments.deployments)]
    serve.run_many([serve.RunTarget(deployment.bind(), name, None) for name in names])
    HTTPServer(("127.0.0.1", arguments.port), Ready).serve_forever()


if __name__ == "__main__":
    main()
