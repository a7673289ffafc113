"""`nereid dev` for a search, which ends with it: `python -m nereid.optimise.serve REPOSITORY [FLAG ...]`."""

import sys

from nereid.internals import load_internals

load_internals()

from nereid.commands.dev import main  # noqa: E402
from nereid.optimise.trials.lifeline import end_with_parent  # noqa: E402

if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
