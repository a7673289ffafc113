"""Models made from what people have: a file, a folder, or nothing yet."""
