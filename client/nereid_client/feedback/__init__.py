"""Feedback as clients send it."""
