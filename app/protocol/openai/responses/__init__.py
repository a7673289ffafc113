"""OpenAI's responses over chats: their requests, and their answers as items and events. No I/O."""
