"""Calls of tools: what a request offers, and what a model's text has of them. No I/O."""
