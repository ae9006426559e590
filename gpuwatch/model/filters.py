"""Filters of lists: one grammar for all lists, parsed into terms that an item must match. Pure functions.

A filter is a text of terms with blanks between them; an item must match every term:

    user:ada,ben   gpu:0-3,5   a key and its values: one of them must match
    mem>10GiB   idle>=30m      a comparison of a figure, by > >= < <= or =, with a value and its unit
    mine   idle                a keyword
    @long                      all terms of a saved filter
    train                      any other text, which is sought in what the list shows
    !jupyter   -mine   not x   a term that must not match

Case does not matter, nor do blanks around a sign (`mem > 10GiB`), and `gpu=3` is `gpu:3`. A figure that is not known
matches no comparison. An unfinished term (`gpu:`, `mem>`, `!`) is left out while somebody types. Each list says which
keys, figures and keywords it has; it refuses those of other lists, instead of reading them as text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from gpuwatch.base.units import Unit
from gpuwatch.model.fields import PROCESS, QUIET_S, USED, Field, Row, compared

T = TypeVar("T")
F = TypeVar("F")
Term: TypeAlias = Callable[[T], bool]

KEYS: Final = {"user": "ada", "uid": "1001", "gpu": "0,2-4", "pid": "123", "rule": "full"}
"""Keys of all lists, each with an example of its values."""
FLAGS: Final = ("mine",)
"""Keywords of all lists."""


class FilterError(ValueError):
    """Error in a filter; the text names what was found and what is allowed."""

    def __init__(self, words: str, start: int = 0, end: int = 0) -> None:
        """`start` and `end` are the place of the wrong term in the filter."""
        super().__init__(words)
        self.start, self.end = start, end


class Comparison(msgspec.Struct, Generic[T], frozen=True):
    """Term that compares a field with a value."""

    field: Field[T]
    sign: str
    """`>`, `>=`, `<`, `<=` or `=`."""
    wanted: float

    def __call__(self, one: T) -> bool:
        """Return whether an item matches; what is not known matches nothing."""
        return bool(self.holds(one))

    def holds(self, one: T) -> bool | None:
        """Return whether an item matches; None where that is not known."""
        value = self.field.amount(one)
        if value is None:
            return None
        number, show = value.number, self.field.format.show
        holds = show(number) == show(self.wanted) if self.sign == "=" else _OPERATORS[self.sign](number, self.wanted)
        return None if value.at_least and (self.sign == "=" or holds != (">" in self.sign)) else bool(holds)


class ListFilter(msgspec.Struct, Generic[T], frozen=True):
    """Filter of one list: an item must match every term."""

    text: str = ""
    terms: tuple[Term[T], ...] = ()

    def __call__(self, one: T) -> bool:
        """Return whether an item matches every term."""
        return all(term(one) for term in self.terms)


class Grammar(msgspec.Struct, Generic[T], frozen=True):
    """Terms by which the items of one list can be filtered."""

    keys: Mapping[str, Callable[[str], Term[T]]]
    """Keys of `KEYS`, each with the parser of its values."""
    anywhere: Callable[[str], Term[T]]
    """Makes the term of any other text."""
    figures: Mapping[str, Field[T]]
    """Fields that can be compared, by the names that filters have for them."""
    flags: Mapping[str, Term[T]] = {}

    @property
    def allowed(self) -> str:
        """Description of these terms, in words."""
        words = [flag for flag in self.flags if flag not in self.figures]
        compared = [f"{', '.join(self.figures)} with > >= < <= ="] * bool(self.figures)
        return ", ".join([*(f"{key}:" for key in self.keys), *words, *compared])


def parse_terms(
    text: str, grammar: Grammar[T], saved: Mapping[str, str] | None = None, *, finished: bool = False
) -> tuple[Term[T], ...]:
    """Parse a filter into its terms; `saved` are the saved filters by name. Raises FilterError.

    With `finished` an unfinished term is a mistake, too: nobody types any more.
    """
    found = []
    signs = rf"(?:{'|'.join(grammar.figures) or '(?!)'})\s*[<>=]=?(?:\s*[\d.]\S*|\S*)"
    word_of = rf"(?:not\s+|[-!])?(?:{signs}|(?:{'|'.join(KEYS)})\s*=\s*\S*|\S+)"
    for word in re.finditer(word_of, text, re.IGNORECASE):
        try:
            term = _parse_term(re.sub(r"^not\s+", "!", word[0].casefold()), grammar, saved or {}, finished)
        except ValueError as error:
            raise FilterError(str(error), *word.span()) from None
        if term is not None:
            found.append(term)
    return tuple(found)


_TEXT_KEYS: Final = ("cmd", "command", "name", "process")
"""Keys of other programs for what is sought as text here."""
_COMPARISON: Final = re.compile(r"([a-z_]+)\s*(>=|<=|>|<|=)\s*(.*)")
_EXAMPLES: Final = {Unit.BYTES: "10GiB", Unit.SECONDS: "30m"}
_OPERATORS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def _parse_term(word: str, grammar: Grammar[T], saved: Mapping[str, str], finished: bool) -> Term[T] | None:
    """Parse one word; None where it is unfinished, and need not be `finished`. Raises ValueError."""
    bare = word[1:] if word[0] in "-!" else word
    if bare in ("", "not", "@"):
        if finished:
            after = "the name of a saved filter" if bare == "@" else "a term, as in !jupyter"
            raise FilterError(f"nothing follows {word}; write {after}")
        return None
    match = _COMPARISON.fullmatch(bare)
    if match and match[1] in KEYS and match[2] == "=":
        bare, match = f"{match[1]}:{match[3]}", None
    head, colon, value = bare.partition(":")
    near = _find_similar(head, grammar.keys, 0.7) if colon and head not in grammar.keys else []
    term: Term[T] | None
    if colon and head in grammar.figures:
        raise FilterError(f"{head}: is compared; write {head}>{value or _example(grammar.figures[head])}")
    if colon and head in _TEXT_KEYS:
        raise FilterError(f"{head}: is not a key; gpuwatch searches commands for any text: write {value or 'train'}")
    if colon and head in KEYS and value[:1] == "!":
        raise FilterError(f"{head}:{value} excludes nothing; write !{head}:{value[1:]}")
    if bare[0] == "@":
        term = _saved_term(bare[1:], grammar, saved)
    elif match:
        term = _comparison(match[1], match[2], match[3], grammar, finished)
    elif colon and head in KEYS:
        if head not in grammar.keys:
            raise FilterError(f"{head}: is not a term of this list; use {grammar.allowed}, or any text")
        if finished and not value.strip(","):
            raise FilterError(f"{head}: has no value; write {head}:{KEYS[head]}")
        term = grammar.keys[head](value) if value.strip(",") else None
    elif near:
        raise FilterError(f"{head}: is not a key; did you mean {near[0]}:{value}?")
    elif bare in grammar.flags:
        term = grammar.flags[bare]
    elif bare in FLAGS:
        raise FilterError(f"{head} is not a term of this list; use {grammar.allowed}, or any text")
    else:
        term = grammar.anywhere(bare)
    return term if term is None or word[0] not in "-!" else _negated(term)


def _negated(term: Term[T]) -> Term[T]:
    return lambda one: not term(one)


def _comparison(name: str, sign: str, value: str, grammar: Grammar[T], finished: bool) -> Term[T] | None:
    figure = grammar.figures.get(name)
    if figure is None and name in ROW_GRAMMAR.figures:
        raise FilterError(f"{name} is not a figure of this list; use {grammar.allowed}, or any text")
    if figure is None and name in grammar.keys:
        raise FilterError(f"{name} cannot be compared with {sign}; write {name}:{value or KEYS[name]}")
    if figure is None and sign == "=":  # commands have `lr=0.1`
        return grammar.anywhere(f"{name}={value}")
    if figure is None:
        near = _find_similar(name, grammar.figures, 0.6)
        allowed = f"did you mean {near[0]}?" if near else f"the figures are {', '.join(grammar.figures)}"
        raise FilterError(f"{name} is not a figure; {allowed}")
    if value:
        return Comparison(figure, sign, figure.format.parse(value))
    if finished:
        raise FilterError(f"{name}{sign} has no value; write one, such as {name}{sign}{_example(figure)}")
    return None


def _find_similar(name: str, known: Iterable[str], cutoff: float) -> list[str]:
    import difflib  # for a mistake alone

    return difflib.get_close_matches(name, known, n=1, cutoff=cutoff)


def _example(figure: Field[T]) -> str:
    return _EXAMPLES.get(figure.unit, "50")


def _saved_term(name: str, grammar: Grammar[T], saved: Mapping[str, str]) -> Term[T]:
    texts = {one.casefold(): text for one, text in saved.items()}
    if name not in texts:
        known = ", ".join(f"@{one}" for one in saved)
        raise FilterError(
            f"no saved filter is called {name}; {known or 'the table [filters] of gpuwatch.toml has none'}"
        )
    if re.search(r"(?:^|\s)[-!]?@", texts[name]):
        raise FilterError(f"@{name} names another saved filter; write its terms instead")
    return ListFilter(texts[name], parse_terms(texts[name], grammar))


def parse_most(text: str, parse: Callable[[str], F]) -> tuple[F, FilterError | None]:
    """Parse a filter without its wrong terms; return it, and the first mistake."""
    first = None
    while True:
        try:
            return parse(text), first
        except FilterError as error:
            first = first or error
            text = " ".join(f"{text[: error.start]} {text[error.end :]}".split())


def find_next(items: Sequence[T], is_match: Term[T], place: int, by: int) -> int | None:
    """Return the place of the next match after `place` (`by` 1) or before it (-1), past the end from the other end."""
    count = len(items)
    places = ((place + by * step) % count for step in range(1, count + 1))
    return next((one for one in places if is_match(items[one])), None)


def parse_numbers(key: str, value: str) -> Callable[[int | None], bool]:
    """Parse the values of `gpu:0,2-4`, and return whether a number is one of them; raises FilterError."""
    spans = []
    for part in filter(None, value.split(",")):
        found = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if found is None:
            raise FilterError(f"{key}:{value} is not a number; try {key}:3 or {key}:0,2-4")
        first, last = int(found[1]), int(found[2] or found[1])
        if first > last:
            raise FilterError(f"{key}:{part} ends before it begins; try {key}:{last}-{first}")
        spans.append((first, last))
    return lambda number: number is not None and any(low <= number <= high for low, high in spans)


def of_numbers(key: str, numbers: Callable[[T], Iterable[int | None]]) -> Callable[[str], Term[T]]:
    """Return the parser of a key whose values are numbers: one of an item's numbers must be among them."""

    def parse(value: str) -> Term[T]:
        is_one = parse_numbers(key, value)
        return lambda one: any(map(is_one, numbers(one)))

    return parse


def of_names(
    names: Callable[[T], Iterable[str]], uids: Callable[[T], Iterable[int | None]] = lambda _: ()
) -> Callable[[str], Term[T]]:
    """Return the parser of a key whose values are parts of an item's names, or whole `uids`: one must be among them."""

    def parse(value: str) -> Term[T]:
        parts = [part for part in value.split(",") if part]
        return lambda one: (
            any(part in name.casefold() for part in parts for name in names(one))
            or not {*map(str, uids(one))}.isdisjoint(parts)
        )

    return parse


def with_text(texts: Callable[[T], Iterable[str]]) -> Callable[[str], Term[T]]:
    """Return the parser of any other text: one of an item's texts must have it."""
    return lambda sought: lambda one: any(sought in text.casefold() for text in texts(one))


# ---------------------------------------------------------------------------------------------------------------
# The process list


class Filter(ListFilter[Row], frozen=True):
    """Filter of the process list.

    Keys: `user:ada` (any name that has it, or this uid), `uid:1001` (this one person; `uid:?` is whoever is not
    visible), `gpu:0,2-4` or `gpu:GPU-8932`, `pid:123`. Figures: `mem` and `rss` (bytes), `used` (memory held / limit
    declared), `sm` and `cpu` (percent), `idle` and `age` (durations). The keywords `mine`, and `idle` for what the list
    shows as idle. Any other text is found in the command, user, PID or GPU name.
    """

    @classmethod
    def parse(cls, text: str, saved: Mapping[str, str] | None = None, *, finished: bool = False) -> Filter:
        """Parse a filter as `parse_terms` does; the FilterError is a sentence for the prompt."""
        return cls(text.strip(), parse_terms(text, ROW_GRAMMAR, saved, finished=finished))


def check_filter(text: str) -> None:
    """Raise FilterError where a filter is understood by no list."""
    parse_terms(text, replace(ROW_GRAMMAR, keys={**_ROW_KEYS, "rule": lambda value: lambda row: value in row.command}))


def _of_uid(value: str) -> Term[Row]:
    if value in ("?", "none"):
        return lambda row: row.process.uid is None
    is_one = parse_numbers("uid", value)
    return lambda row: is_one(row.process.uid)


def parse_gpus(value: str) -> Callable[[int, str], bool]:
    """Parse the values of `gpu:0,2-4,GPU-8932`; return whether a GPU's index or UUID is one of them."""
    parts = [part for part in value.casefold().split(",") if part]
    uuids = tuple(part for part in parts if part.startswith("gpu-"))
    is_one = parse_numbers("gpu", ",".join(part for part in parts if part not in uuids))
    return lambda index, uuid: is_one(index) or uuid.casefold().startswith(uuids)


def _on_gpu(value: str) -> Term[Row]:
    is_one = parse_gpus(value)
    return lambda row: is_one(row.gpu.index, row.gpu.uuid)


def _anywhere(sought: str) -> Term[Row]:
    return lambda row: (
        sought in row.command.casefold()
        or sought in row.brief.casefold()
        or sought in row.owner.casefold()
        or sought == str(row.holding.pid)
        or sought in row.gpu.name.casefold()
    )


_ROW_KEYS: Final[Mapping[str, Callable[[str], Term[Row]]]] = {
    "user": of_names(lambda row: (row.owner,), lambda row: (row.process.uid,)),
    "uid": _of_uid,
    "gpu": _on_gpu,
    "pid": of_numbers("pid", lambda row: (row.holding.pid,)),
}

ROW_GRAMMAR: Final = Grammar(
    _ROW_KEYS,
    _anywhere,
    compared((PROCESS["memory"], USED, *PROCESS.values())),
    {"mine": lambda row: row.mine, "idle": Comparison(PROCESS["idle"], ">=", QUIET_S)},
)
"""Terms by which the process list can be filtered."""
