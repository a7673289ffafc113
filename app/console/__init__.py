"""The operator's console: a process beside a server, which asks it as any client does."""
