"""What a run looks like: on a terminal, as CSV, as a page."""
