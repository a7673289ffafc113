"""What models and clients consume, by the ledger of this machine."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from app.core.cost.ledger import Hour, read_hours
from app.core.cost.prices import read_prices
from app.core.cost.report import Report, report
from app.core.errors import internal, unsupported
from app.core.files.private_files import state_directory
from app.settings.settings import ServerSettings

Permits = Callable[[str], bool]


def bill(settings: ServerSettings, since: float, by: Sequence[str], permits: Permits | None = None) -> Report:
    """Return the report of the hours from `since` on, Unix seconds. Blocks.

    Args:
        settings: say where ledger and prices are.
        since: the hour that it is in counts whole.
        by: fields of `FIELDS`.
        permits: whether somebody may see a model, by its name; None for all.

    Raises:
        InferError: UNSUPPORTED where nothing is counted, INTERNAL for files that cannot be read.
    """
    cost = settings.cost
    if not cost.enabled:
        raise unsupported("this server counts no costs: start it with --cost=true")
    try:
        directory = Path(cost.directory or state_directory("cost", settings.model_store.state_directory))
        prices = read_prices(Path(cost.prices)) if cost.prices else None
        hours = read_hours([directory], since) if directory.is_dir() else iter(())
        return report(hours if permits is None else _seen(hours, permits), by, prices)
    except (OSError, ValueError) as error:
        raise internal(f"the ledger or the prices cannot be read: {error}") from None


def _seen(hours: Iterator[Hour], permits: Permits) -> Iterator[Hour]:
    """Yield hours without rows of other models, and of the server as a whole."""
    for hour in hours:
        rows = [row for row in hour.rows if row.kind in ("usage", "idle") and permits(row.model)]
        yield hour._replace(rows=rows)
