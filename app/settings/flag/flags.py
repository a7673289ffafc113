"""Declaration of flags.

A flag is declared once, as the annotation of a struct's field: `port: A[int, Flag("http_port", ...)] = 8000`.
Structs nest as sections. The table of flags, the command line, its usage text, the reference and the keys in
serve_config.yaml follow from the declarations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from app.settings.flag.errors import SettingsError
from app.settings.flag.values import READERS, Limits, read_text

Label = Callable[[str], str]
"""Spells a flag's name as the user wrote it."""

S = TypeVar("S", bound=msgspec.Struct)

NEREID = "Nereid"
"""Heading of the flags that tritonserver does not have."""


class Flag(Limits, frozen=True):
    """Metadata of a flag.

    The type and the default of a flag are those of the annotated field, unless it has a `parse` function:
    then it is text, empty by default.

    Attributes:
        name: with underscores, as in serve_config.yaml.
        help: one sentence for the usage text.
        heading: group in the usage text; "" for that of the section.
        bare: the flag takes no value on a command line; its presence means true.
        unused: the flag is parsed and has no effect yet: a value other than the default causes a warning.
        per_unit: value of the flag for 1 in the field: 1000 for milliseconds kept as seconds.
        parse: makes the field's value from the text; raises ValueError.
        repeats: `parse` receives the texts of all occurrences, as a tuple.
        words: a value without ":" on a command line has two more words behind it: `A K V` is `A:K=V`.
    """

    name: str
    help: str
    heading: str = ""
    bare: bool = False
    unused: bool = False
    per_unit: int = 1
    parse: Callable[[Any], Any] | None = None
    repeats: bool = False
    words: bool = False


class Section(msgspec.Struct, frozen=True):
    """Annotation of a field whose value is made of several flags.

    Attributes:
        heading: group of its flags in the usage text.
        source: struct that declares the flags; None if the field's type does.
        combine: makes the field's value from a `source`; raises ValueError.
        prefix: replaces `{}` in the names of the flags.
    """

    heading: str = ""
    source: type[msgspec.Struct] | None = None
    combine: Callable[[Any], Any] | None = None
    prefix: str = ""


class SameAs(msgspec.Struct, frozen=True):
    """Annotation of a field that has the value of a flag declared elsewhere."""

    name: str


class Setting(NamedTuple):
    """A row of the table of flags.

    Attributes:
        name: of the flag.
        heading: group in the usage text.
        path: names of the fields that lead to the value, from `ServerSettings`.
        type: bool, int, float, str or tuple[str, ...], as the user gives it.
        default: of that type.
        flag: the declaration.
    """

    name: str
    heading: str
    path: tuple[str, ...]
    type: Any
    default: Any
    flag: Flag

    @property
    def repeats(self) -> bool:
        """Whether the flag may be given several times."""
        return get_origin(self.type) is tuple

    def read(self, value: object, label: str) -> Any:
        """Convert a value into that of the field.

        Args:
            value: a string from a command line, or whatever YAML made of the text.
            label: the flag's name as the user wrote it.

        Raises:
            SettingsError: the value is not one the flag may have.
        """
        read = self._read_raw(value, label)
        if self.flag.per_unit != 1:
            return read / self.flag.per_unit
        return parsed(self.flag.parse, read) if self.flag.parse else read

    def _read_raw(self, value: object, label: str) -> Any:
        if self.repeats:
            items = value if isinstance(value, list | tuple) else [value]
            return tuple(read_text(item, self.flag, label) for item in items)
        return READERS[self.type](value, self.flag, label)


def parsed(parse: Callable[[Any], Any], value: object) -> Any:
    """Return `parse(value)`; its ValueError becomes a SettingsError of the same text."""
    try:
        return parse(value)
    except ValueError as error:
        raise SettingsError(str(error)) from None


class _Member(NamedTuple):
    field: msgspec.structs.FieldInfo
    type: Any
    note: Flag | Section | SameAs


def _members(kind: type[msgspec.Struct]) -> Iterator[_Member]:
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        if get_origin(hints[field.name]) is Annotated:
            yield _Member(field, *get_args(hints[field.name]))


def table(
    kind: type[msgspec.Struct], section: Section | None = None, path: tuple[str, ...] = ()
) -> dict[str, Setting]:
    """Return the flags that a struct and its sections declare, by name, in the order of declaration."""
    section = section or Section()
    rows: dict[str, Setting] = {}
    for field, type_, note in _members(kind):
        place = (*path, field.name)
        if isinstance(note, Section):
            nested = msgspec.structs.replace(note, heading=note.heading or section.heading)
            rows |= table(note.source or type_, nested, place)
        elif isinstance(note, Flag):
            row = _row(field, type_, note, section, place)
            rows[row.name] = row
    return rows


def _row(
    field: msgspec.structs.FieldInfo, type_: Any, flag: Flag, section: Section, path: tuple[str, ...]
) -> Setting:
    default = field.default
    if flag.parse:
        type_, default = (tuple[str, ...], ()) if flag.repeats else (str, "")
    elif flag.per_unit != 1:
        type_, default = int, round(default * flag.per_unit)
    name = flag.name.format(section.prefix)
    return Setting(name, flag.heading or section.heading, path, type_, default, flag)


def build(kind: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    """Make a struct and its sections from the values of flags by name; a missing one leaves the default.

    Raises:
        SettingsError: values that contradict each other.
    """
    fields: dict[str, Any] = {}
    for field, type_, note in _members(kind):
        if isinstance(note, Section):
            made = build(note.source or cast(type[msgspec.Struct], type_), values, note.prefix)
            fields[field.name] = parsed(note.combine, made) if note.combine else made
        elif (name := note.name.format(prefix)) in values:
            fields[field.name] = values[name]
    return kind(**fields)


def by_heading(rows: Iterable[Setting]) -> dict[str, list[Setting]]:
    """Group flags for the usage text: tritonserver's headings, then Nereid's own."""
    groups: dict[str, list[Setting]] = {}
    for row in rows:
        groups.setdefault(row.heading, []).append(row)
    return dict(sorted(groups.items(), key=lambda group: group[0] == NEREID))
