"""`python -m app` is `nereid`."""

from app.cli import main

main()
