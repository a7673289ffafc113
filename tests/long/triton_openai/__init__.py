"""Triton's own tests of its front for OpenAI's clients, against this one."""
