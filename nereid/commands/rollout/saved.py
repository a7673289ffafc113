"""What a promoted version saves, for a terminal and a page. Pure."""

from app.core.rollout.report import Estimate
from app.core.rollout.saving import Saving
from nereid_client.tools.digits import four_digits


def saving_lines(saving: Saving | None) -> list[str]:
    """Return the lines that say what a version saves; none where nothing is known of it."""
    if saving is None:
        return []
    if saving.share is None or saving.core_seconds is None:
        return [f"saving: not known yet: {saving.waiting}"]
    return [headline(saving), about(saving)]


def headline(saving: Saving) -> str:
    """Say what a version saves, or that nothing is shown."""
    share, saved = saving.share, saving.core_seconds
    if share is None or saved is None:
        return ""
    interval = f"95 %: {_signed(share.low)} to {_signed(share.high)}"
    if saving.shown:
        total = f"{saved.value:,.0f} core-seconds ({saved.low:,.0f} to {saved.high:,.0f})"
        return (
            f"saving: {_signed(share.value)} of the processor time ({interval}), {total} since the promotion"
        )
    if saving.worse:
        return f"no saving: it takes {_signed(-share.value)} more processor time (saving {interval})"
    return f"no saving shown: {_signed(share.value)} of the processor time ({interval})"


def about(saving: Saving) -> str:
    """Say what was compared with what."""
    new, stable = four_digits(saving.new_ms), four_digits(saving.stable_ms)
    both = f"{new} ms a row, the version before at the same load {stable} ms"
    minutes = f"{saving.minutes:,} minutes beside {saving.stable_minutes:,} before the promotion"
    return f"{both}; {minutes}; {saving.rows:,} rows since then"


def saving_rows(saving: Saving | None) -> list[tuple[str, str]]:
    """Return the rows of a table: what, and how much with its interval."""
    if saving is None:
        return []
    if saving.share is None or saving.core_seconds is None:
        return [("not known yet", saving.waiting)]
    return [
        ("processor time that it saves", _interval(saving.share, 100, " %")),
        ("since the promotion", _interval(saving.core_seconds, 1, " core-seconds")),
        ("compared", about(saving)),
    ]


def _signed(share: float) -> str:
    return f"{100 * share:.1f} %"


def _interval(found: Estimate, scale: float, unit: str) -> str:
    value, low, high = (scale * each for each in (found.value, found.low, found.high))
    return f"{value:,.1f}{unit} ({low:,.1f} to {high:,.1f})"
