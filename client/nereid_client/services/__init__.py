"""gRPC services of Nereid beside those of the v2 protocol."""
