"""The commands that the distribution installs. Each loads the server's packages first."""

import sys

from nereid.internals import load_internals


def nereid() -> None:
    """Run tritonserver's command line, or another command."""
    load_internals()
    from nereid.server.cli import main

    main()


def tritonserver() -> None:
    """Run tritonserver's command line, for what starts a program of that name."""
    load_internals()
    from nereid.server.cli import tritonserver

    tritonserver()


def nereid_serve() -> None:
    """Run `serve run` with a drain at SIGTERM."""
    load_internals()
    from nereid.server.serve_run import main

    main(sys.argv[1:])
