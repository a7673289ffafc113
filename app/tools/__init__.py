"""Programs for users of a server: they ask it as any client does, and import nothing of it."""
