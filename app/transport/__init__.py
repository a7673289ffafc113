"""The data plane between processes: frames over one multiplexed connection, tensors in shared memory.

`client.Channel` and `server.ChannelServer` are the two ends; `connection` is what they share, `frames` and
`messages` the codec without I/O, `arena` the shared memory, `handshake` what happens before the first frame.
"""
