"""Requests for texts, chats and completions: their fields, the requests to a model, the answers. No I/O."""
