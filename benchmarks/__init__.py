"""Nereid beside its peers: the same requests, the same load generators, interleaved runs."""
