"""A search for the configuration with which a model of a running server does most: `nereid analyze`."""
