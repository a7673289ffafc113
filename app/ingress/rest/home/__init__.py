"""The page at `/`, for people who open the server's address in a browser: static HTML, without scripts."""
