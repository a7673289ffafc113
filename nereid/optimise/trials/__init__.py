"""What a candidate is, and its trial in a process with limits."""
