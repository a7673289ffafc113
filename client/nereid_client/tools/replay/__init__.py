"""Repeating the requests of a tape at a server, and telling how its answers differ from the recorded ones."""
