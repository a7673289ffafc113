"""Programs for users of a server: those that ask one do so as any client, and import nothing of it."""
