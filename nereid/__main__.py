"""`python -m nereid` is the command `nereid`."""

from nereid.commands import nereid

nereid()
