"""The error that a call of a model raises."""


class InferError(Exception):
    """A failed inference.

    Attributes:
        code: Triton's name of it: UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED,
            ALREADY_EXISTS or CANCELLED.
        message: the text that a client of the HTTP or gRPC API would receive.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)  # both, so that a pickled error keeps them
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message
