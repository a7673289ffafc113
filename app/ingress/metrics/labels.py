"""What tells the samples of a metric family apart."""

from collections.abc import Mapping

from app.ingress.metrics.custom import escape


class Labels:
    """Label names and values; as text sorted by name, as tritonserver's are (prometheus-cpp keeps a map).

    A `quantile` or an `le` is no part of them: it goes behind.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._text = ",".join(f'{name}="{escape(value)}"' for name, value in sorted(values.items()))

    def __str__(self) -> str:
        return self._text

    def also(self, name: str, value: str) -> "Labels":
        """These and one more."""
        return Labels({**self._values, name: value})
