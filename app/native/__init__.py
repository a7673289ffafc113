"""The part of the data plane that is compiled, from C: `extension`, which an installation may lack."""
