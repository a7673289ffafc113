"""Sending requests and noting when they end: what runs in a process of its own during a measurement."""
