"""A Ray cluster that a program starts for itself: its directory, its processes, and further tries."""
