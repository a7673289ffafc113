"""Models over files, without a server: `nereid batch`."""
