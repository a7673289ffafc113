"""The Ray cluster of a server: an existing one, or one started for this machine alone."""

import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from app.core.files.private_files import require_home
from app.ray_adapter.claim import Claim, claim_cluster, release_cluster
from app.ray_adapter.local.cluster import ray_init, start_cluster
from app.ray_adapter.token import require_token

_ANSWER_S: Final = 30.0
_TRY_S: Final = 5.0
_ADDRESS: Final = re.compile(r"\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d{1,5})")
CONTROLLER_CALLBACK: Final = "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH"
_LOOPBACK: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes 127.0.0.1 the address of the node, on which Ray's processes then listen (`get_node_ip_address` in
ray/_private/services.py of Ray 2.60). By default they listen on every interface on Linux, and some of them
serve pages without asking for the token."""


Ours = Callable[[str, Collection[str]], bool]


class ClusterError(Exception):
    """There is no cluster to serve on; the text is one line."""


def join_or_start(
    loopback: bool = True,
    import_from_cwd: bool = True,
    include_dashboard: bool = False,
    controller: str = "",
    workers: str = "",
    meanwhile: Iterable[str] = (),
    **options: Any,
) -> bool:
    """Join the cluster named by RAY_ADDRESS or `ray start`; without either, start one. Imports Ray.
    A start that fails because the machine is too busy is repeated by running the program anew.

    Args:
        loopback: a cluster that is started can be reached from this machine only.
        import_from_cwd: workers import from the directory of this process, which is Ray's default.
        controller: what Serve's controller calls when it starts, as "module:function".
        include_dashboard, workers, meanwhile: see `start_cluster`.
        options: options of `ray.init`.

    Returns:
        Whether the cluster was started.

    Raises:
        ClusterError: Ray cannot be started, or the cluster cannot be joined, or it has a server already.
    """
    _require_files()
    address = os.environ.get("RAY_ADDRESS", "")
    starts = not address and not _started_file().exists()
    _set_environment(starts and loopback, controller if starts else "")
    init = ray_init if import_from_cwd else _init_elsewhere
    options["include_dashboard"] = include_dashboard
    if starts:
        with _reporting("start Ray"):
            start_cluster(workers=workers, meanwhile=meanwhile, init=init, **options)
    else:
        wait_joinable(address)
        with _reporting(f"join the Ray cluster at '{address}'" if address else "start Ray"):
            init(**options)
        _claim()
    return starts


@contextmanager
def _reporting(action: str) -> Iterator[None]:
    """Raise a ClusterError for what goes wrong in an action."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ClusterError(f"error: creating server: Unavailable - cannot {action}: {reason}") from error


def _set_environment(loopback: bool, controller: str) -> None:
    """Set variables of the cluster that are not set."""
    # Ray 2.60 runs its workers at niceness 15, behind every other process of the machine.
    variables = {"RAY_worker_niceness": "0"}
    variables |= {CONTROLLER_CALLBACK: controller} if controller else {}
    variables |= _LOOPBACK if loopback else {}
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _require_files() -> None:
    """Give this user a home directory and Ray's token."""
    try:
        require_home()
        require_token()
    except OSError as error:
        text = f"error: creating server: Unavailable - cannot keep Ray's token: {error}"
        raise ClusterError(text) from error


def _init_elsewhere(**options: Any) -> None:
    from ray.job_config import JobConfig

    # Ray adds the directory of every driver but that of a Ray Client (`ray._private.worker.connect`).
    ray_init(job_config=JobConfig(_client_job=True), **options)


def _claim() -> None:
    import ray

    context = ray.get_runtime_context()
    address = context.gcs_address
    mine = Claim(context.get_job_id(), socket.gethostname(), os.getpid())
    other = claim_cluster(mine)
    if other is not None:
        ray.shutdown()
        raise ClusterError(
            f"error: creating server: Unavailable - the Ray cluster at '{address}' has a server "
            f"already, {other}: end it, or start this one in a cluster of its own (without RAY_ADDRESS)"
        )


def retire(application: str, owned: bool, ours: Ours) -> None:
    """Delete the server's application, then its models.

    The ingress goes first: it answers requests in flight while the models still run.

    Args:
        application: the one of the ingress.
        owned: the program has started the cluster, and ends everything that it runs.
        ours: whether an application belongs to the server, by its name and its deployments.
    """
    from ray import serve

    from app.ray_adapter.serve.applications import kill_starting

    serve.delete(application, _blocking=False)  # first, so that the manager knows why loads end
    kill_starting(ours)  # a load that never returns would delay its client, and so the ingress
    serve.delete(application)
    kill_starting(ours)
    left = serve.status().applications
    own = [name for name, status in left.items() if ours(name, status.deployments)]
    if owned or len(own) == len(left):
        serve.shutdown()  # type: ignore[no-untyped-call]
    else:
        for name in own:
            serve.delete(name)


def disconnect(owned: bool) -> None:
    """Disconnect from Ray, which ends a cluster that this program has started."""
    import ray

    if not owned:
        release_cluster()
    ray.shutdown()


def run_serve_cli(arguments: Sequence[str], verbose: bool = True) -> None:
    """Run the `serve` command in this process (`ray.serve.scripts.cli` of Ray 2.60, a click group).

    Args:
        arguments: of the command.
        verbose: print what the command says of its progress; its errors are printed in any case.
    """
    from ray.serve import scripts

    if not verbose:
        printer = vars(scripts)["cli_logger"]
        printer.print = printer.success = lambda *args, **kwargs: None
    scripts.cli(list(arguments), standalone_mode=False)


def wait_joinable(given: str, timeout_s: float = _ANSWER_S) -> None:
    """Wait until the cluster accepts connections; Ray itself would try for a quarter of an hour.

    Args:
        given: RAY_ADDRESS; "" for the cluster that `ray start` began here, whose file outlives one that was
            killed.
        timeout_s: how long.

    Raises:
        ClusterError: no connection was accepted in time.
    """
    address, place, remedy = given, "RAY_ADDRESS", ""
    if not given:
        file = _started_file()
        with suppress(OSError, ValueError):  # ended meanwhile, or no address: Ray says so
            address = file.read_text().strip()
        place = "the address of 'ray start'"
        remedy = f"; where it has ended, 'ray stop' or removing '{file}' lets Nereid start its own"
    match = _ADDRESS.fullmatch(address)
    if match is None:  # "auto", or an address that Ray will refuse
        return
    error = _connect((match["host"], int(match["port"])), timeout_s)
    if error is not None:
        text = f"error: creating server: Unavailable - no answer at {place} '{address}': {error}{remedy}"
        raise ClusterError(text) from error


def _connect(address: tuple[str, int], timeout_s: float) -> Exception | None:
    """Return why no connection was accepted; None for one that was."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(address, _TRY_S).close()
            return None
        except (OSError, OverflowError) as error:
            if time.monotonic() >= deadline:
                return error
        time.sleep(min(1.0, timeout_s))


def _started_file() -> Path:
    """Return the file with the address of the cluster between `ray start` and `ray stop`.

    As `get_ray_address_file` in ray/_common/utils.py of Ray 2.60, without importing Ray.
    """
    directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(directory, "ray", "ray_current_cluster")
