"""Has a real Prometheus read a server under load, and asks it everything that the dashboards and rules ask.

Prints a table of the expressions, with the number of series of each answer. Those about GPUs, TLS, tokens and
what has not happened have none. Needs `prometheus` (Debian's package) on the PATH.
"""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.expressions import RULES, expressions, rules
from tests.long.mix import KINDS, Mix
from tests.long.outcomes import Ledger
from tests.long.server import say, started
from tests.server import free_port, wait_until

SCRAPE_S: Final = 1
LOAD_S: Final = 60.0
_ABSENT: Final = re.compile(
    "nv_gpu|nereid_(token|certificate|request_refusal|replica_lost|model_load_failure|rollout|replicas_[mw]|scaling"
    "|models_|model_memory|model_demands|model_evict)"
)
"""What this server lacks: GPU, TLS, tokens, rollouts, scaled models, models on demand, trouble."""


class Prometheus:
    """A Prometheus with the shipped configuration, but for the server's address and for haste."""

    def __init__(self, directory: Path, server_port: int) -> None:
        self._url = f"http://127.0.0.1:{free_port()}"
        config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
        config["global"] = {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"}
        config["rule_files"] = [str(RULES)]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{server_port}"]}]
        path = directory / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        program = shutil.which("prometheus")
        if program is None:
            sys.exit("prometheus is not installed (Debian: apt install prometheus)")
        with (directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={path}",
                    f"--storage.tsdb.path={directory / 'tsdb'}",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )

    def query(self, expr: str) -> list[Any]:
        """Return the samples of an expression now."""
        given = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{given}", timeout=10) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
        return found

    def scraped(self) -> bool:
        """Whether it has read the server."""
        try:
            return bool(self.query("up == 1"))
        except OSError:
            return False

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)


@contextlib.contextmanager
def watching(directory: Path, server_port: int) -> Iterator[Prometheus]:
    """Start Prometheus; return when it has read the server."""
    prometheus = Prometheus(directory, server_port)
    try:
        wait_until(prometheus.scraped, 60, "Prometheus reads the server")
        yield prometheus
    finally:
        prometheus.stop()


def report(prometheus: Prometheus) -> list[str]:
    """Print what each expression finds; return those that should find something and do not."""
    wrong = []
    conditions = {rule["alert"] for rule in rules() if "alert" in rule}
    for where, expr in expressions():
        expr = expr.replace("[5m]", "[30s]").replace("[30m]", "[30s]").replace("[1h]", "[30s]")
        found = prometheus.query(expr)
        value = found[0]["value"][1] if found else ""
        say(f"  {where:46} {len(found):4} {value}")
        if not found and where not in conditions and not _ABSENT.search(expr):
            wrong.append(f"{where}: nothing for {expr}")
    firing = prometheus.query('ALERTS{alertstate="firing"}')
    for labels in (each["metric"] for each in firing):
        say(f"  fires: {labels['alertname']} {labels.get('model', '')}")
    return wrong


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.long.prometheus",
    ).parse_args()
    ledger = Ledger()
    with (
        started(ingress_replicas=1) as (server, directory),
        watching(directory, server.metrics_port) as prometheus,
        Mix(server.http_url, server.grpc_url, ledger, KINDS, clients=3),
    ):
        time.sleep(LOAD_S)
        wrong = report(prometheus)
    say(f"  {ledger.total} requests")
    for line in wrong:
        say(f"FAILED: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
