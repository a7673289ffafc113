"""The tape: recorded requests and their answers, as files that a server writes and tools read.

`reader.Tape` reads a directory or a file; a `rows.Row` is one request. It needs msgspec, of the extra
`tools`.
"""
