"""Code that depends on the internals of one Ray version: private names, locks, environment variables.

Outside of this folder only Ray's public API is used. When Ray is upgraded, the test of this folder named
`test_ray_facts.py` says which private name is missing or has changed.
"""
