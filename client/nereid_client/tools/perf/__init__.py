"""A load generator for servers of the v2 protocol, Nereid and Triton: `nereid perf`."""
