"""Who runs the data plane's event loop: mechanisms that save the switch to another thread.

docs/develop/event_loop.md has their contracts. Which executions use them is decided in
`deployments/event_loop_execution`.
"""
