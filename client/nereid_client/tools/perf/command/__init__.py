"""The command `nereid perf`."""
