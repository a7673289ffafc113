"""Nereid beside its peers: the same requests, the same load generators, interleaved runs."""

from nereid.internals import load_internals

load_internals()  # finds the client library, which the generator of `nereid perf` uses
