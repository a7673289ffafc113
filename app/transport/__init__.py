"""The data plane between processes: frames over one multiplexed connection, tensors in shared memory.

`channel.client.Channel` and `channel.server.ChannelServer` are the two ends; `wire` is the codec without I/O,
`memory` the shared memory, `loops` who runs the event loop.
"""
