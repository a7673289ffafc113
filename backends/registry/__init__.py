"""Finds backends by name: in a backend directory, in installed packages, and built in."""
