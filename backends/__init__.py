"""Backends, which execute models: a folder each, with a description. The registry finds them by name."""
