"""Write what the program knows into README.md, the pages of the guide and `gpuwatch/shell`: `python -m tests.docs`.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. The files of `gpuwatch/shell` are the completions
and the man page. A test fails where one of them is stale.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import tomllib
from argparse import SUPPRESS
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

import gpuwatch
from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.rules.custom import GRAMMARS
from gpuwatch.commands.completion import FOLDER as SHELL
from gpuwatch.commands.docs import FOLDER, PAGES, summary
from gpuwatch.commands.doctor import CHECKS, DoctorJson
from gpuwatch.commands.explain import VisibleJson
from gpuwatch.commands.flags import FLAGS
from gpuwatch.commands.fleet import FleetPickJson
from gpuwatch.commands.pick import PickJson
from gpuwatch.commands.reference import COMMANDS, DASHBOARD, EXIT_CODES
from gpuwatch.commands.reference import GROUPS as COMMAND_GROUPS
from gpuwatch.commands.strays import StrayJson
from gpuwatch.config.keys import keys_of, sections, value_of
from gpuwatch.config.types import Config
from gpuwatch.export.metrics import ALIASES, GROUPS
from gpuwatch.fleet.overview import Fleet
from gpuwatch.model import snapshot as model
from gpuwatch.model.live import Status
from gpuwatch.ui.draw.keys import KEYS
from gpuwatch.ui.draw.theme import UNICODE
from gpuwatch.ui.screens.help import key_sections, legend
from tests import CHECKOUT
from tests.shell import command_flags as flags_of_commands
from tests.shell import shared_words, shell_files, whole_parser

PACKAGE: Final = Path(gpuwatch.__file__).parent
_MANY: Final = 12
"""Keys of a table that allow the same: of more than that the words stand once, above the table."""
_BLOCK: Final = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->\n)", re.DOTALL)


def figures() -> Iterator[str]:
    """Yield the figures that a rule of the user can compare."""
    yield "| on | figures |"
    yield "|---|---|"
    for on, grammar in GRAMMARS.items():
        yield f"| `{on}` | {', '.join(f'`{name}`' for name in grammar.figures)} |"


def keys() -> Iterator[str]:
    """Yield the keys of the dashboard, in the groups of its help."""
    for section in key_sections(KEYS):
        yield f"**{section.title}**"
        yield ""
        yield "| key | what it does |"
        yield "|---|---|"
        for fact in section.facts:
            yield f"| {' '.join(f'`{key}`' for key in fact.label.split())} | {fact.value} |"
        yield ""


def terms() -> Iterator[str]:
    """Yield the marks and the terms of the help screen."""
    for section in legend(UNICODE):
        yield f"**{section.title}**"
        yield ""
        yield f"| {section.title.lower().rstrip('s')} | meaning |"
        yield "|---|---|"
        yield from (f"| {fact.label} | {fact.value} |" for fact in section.facts)
        yield ""


def configuration() -> Iterator[str]:
    """Yield every key of gpuwatch.toml with its default and the values that are allowed."""
    for table, keys in sections().items():
        if table:
            yield f"### [{table}]"
            yield ""
            yield _sentence(keys_of(Config)[table].description)
            yield ""
        ((common, count),) = Counter(key.range for key in keys.values()).most_common(1)
        once = common if count > _MANY else ""
        if once:
            yield f"If the table gives nothing else, allowed is {once}."
            yield ""
        yield "| key | default | allowed | meaning |"
        yield "|---|---|---|---|"
        for name, key in keys.items():
            default, allowed = key.write(value_of(Config(), name)), "" if key.range == once else _cell(key.range)
            yield f"| `{key.name}` | `{default}` | {allowed} | {_cell(key.description)} |"
        yield ""


def checks() -> Iterator[str]:
    """Yield what each check of `gpuwatch doctor` examines."""
    yield "| check | what it examines |"
    yield "|---|---|"
    for name, words in CHECKS.items():
        yield f"| {name} | {words} |"


def commands() -> Iterator[str]:
    """Yield the commands in the groups of `gpuwatch --help`."""
    for title, group in COMMAND_GROUPS.items():
        yield f"**{_sentence(title).removesuffix('.')}**"
        yield ""
        yield "| command | what the command does |"
        yield "|---|---|"
        for name, command in group.items():
            yield f"| `gpuwatch {name}` | {_cell(command.words)} |"
        yield ""


def flags() -> Iterator[str]:
    """Yield the flags of the dashboard in the groups of `gpuwatch --help=all`."""
    for title, group in FLAGS.items():
        yield f"**{_sentence(title).removesuffix('.')}**"
        yield ""
        yield "| flag | meaning of the flag |"
        yield "|---|---|"
        for name, flag in group.items():
            if flag["help"] != SUPPRESS:
                argument = f"--{name} {flag.get('metavar', '')}".strip()
                yield f"| `{argument}` | {_cell(flag['help'])} |"
        yield ""


def command_flags() -> Iterator[str]:
    """Yield each command with its own flags, and the names of those that it shares with others."""
    for name, own, shared in flags_of_commands(whole_parser()):
        yield f"### gpuwatch {f'{name} {COMMANDS[name].usage}'.strip()}"
        yield ""
        if own:
            yield "| argument | meaning |"
            yield "|---|---|"
            yield from (f"| `{_cell(argument)}` | {_cell(words)} |" for argument, words in own.items())
            yield ""
        if shared:
            yield shared_words(shared, "`")
            yield ""


def exit_codes() -> Iterator[str]:
    """Yield the exit codes in general, and those of each command."""
    yield "| exit code | meaning |"
    yield "|---:|---|"
    yield from (f"| {code} | {words} |" for code, words in EXIT_CODES.items())
    yield ""
    yield "| command | its exit codes |"
    yield "|---|---|"
    for name, command in {"": DASHBOARD, **COMMANDS}.items():
        codes = "; ".join(f"{code} {words}" for code, words in command.exit_codes().items())
        yield f"| `{f'gpuwatch {name}'.strip()}` | {codes} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def stream() -> Iterator[str]:
    """Yield every object of the stream with its fields, and every word that a field may hold."""
    objects: list[Any] = [model.Snapshot]
    words: list[type[Enum]] = [model.Reason]
    for one in objects:  # it grows as fields of further types are found
        yield from _heading(one)
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        names = dict(zip(one.__struct_fields__, one.__struct_encode_fields__, strict=True))
        for name, hint in get_type_hints(one).items():
            for part in _parts(hint):
                found: list[Any] = words if issubclass(part, Enum) else objects
                if issubclass(part, Enum | msgspec.Struct) and part not in found:
                    found.append(part)
            yield f"| `{names.get(name, name)}` | {_type(hint)} | {_docs(one).get(name, '')} |"
        yield ""
    for enum in words:
        yield from _heading(enum)
        for word in enum:
            if word.value:
                says = _docs(enum).get(word.name, "")
                yield f"- `{word.value}`{': ' if says else ''}{says}"
        yield ""


OUTPUTS: Final = {
    "`status --json`, `--stream=live`": (Status, ("resting", "processes")),
    "`events --json`": (Alert, ()),
    "`strays --json`": (StrayJson, ()),
    "`pick --json`": (PickJson, ()),
    "`pick --fleet --json`": (FleetPickJson, ()),
    "`explain --visible --json`": (VisibleJson, ()),
    "`doctor --json`": (DoctorJson, ()),
    "`fleet --json`": (Fleet, ("received", "trouble")),
}
"""Struct that a command prints, and the fields of it that are left out."""


def outputs() -> Iterator[str]:
    """Yield the fields of the JSON of the commands."""
    for title, (struct, left_out) in OUTPUTS.items():
        yield f"### {title}"
        yield ""
        yield "| field | type | meaning |"
        yield "|---|---|---|"
        yield from _rows(struct, "", left_out)
        yield ""


def _rows(struct: Any, path: str, left_out: tuple[str, ...] = ()) -> Iterator[str]:
    names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    for name, hint in get_type_hints(struct).items():
        if name in left_out:
            continue
        inside = next((part for part in _parts(hint) if issubclass(part, msgspec.Struct)), None)
        words = next((part for part in _parts(hint) if issubclass(part, Enum) and part is not model.Reason), None)
        says = _docs(struct).get(name, "")
        if words:
            says = f"{says} {_words(words)}".strip()
        is_list = get_origin(hint) not in (None, Union, UnionType)
        type_ = "list" if inside and is_list else "object" if inside else "word" if words else _type(hint)
        if (inside or words) and NoneType in _parts(hint):
            type_ += " or null"
        yield f"| `{path}{names.get(name, name)}` | {type_} | {says} |"
        if inside:
            yield from _rows(inside, f"{path}{names.get(name, name)}{'[]' * is_list}.")


def _words(enum: type[Enum]) -> str:
    if issubclass(enum, IntEnum):
        return f"{', '.join(f'{word.value} {word.name.lower()}' for word in enum)}."
    return f"One of {', '.join(f'`{word.value}`' for word in enum if word.value)}."


def _heading(of: type) -> Iterator[str]:
    yield f"### {_name(of)}"
    yield ""
    yield _prose(inspect.getdoc(of) or "")
    yield ""


def _name(of: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", of.__name__).lower()


def _parts(hint: Any) -> Iterator[type]:
    """Yield the classes in a type, such as Memory in `tuple[Memory, ...]`."""
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        yield from _parts(part)


def _type(hint: Any) -> str:
    """Return a type as people who read JSON call it."""
    names = {str: "text", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
    if hint == model.Reading:
        return "reading"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_type(part) for part in get_args(hint))
    if get_origin(hint) in (tuple, Sequence):
        return f"list of {_type(get_args(hint)[0])}"
    if get_origin(hint) in (dict, Mapping):
        return f"object of {_type(get_args(hint)[1])}"
    return names.get(hint) or _name(hint)


@cache
def _docs(of: type) -> Mapping[str, str]:
    """Return the docstrings that stand below the fields of a class."""
    (tree,) = ast.parse(inspect.getsource(of)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = _prose(text)
    return found


def _prose(text: str) -> str:
    """Return a docstring on one line, in the words of JSON."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split())).replace("|", "\\|")


def metrics() -> Iterator[str]:
    """Yield the metrics of the exporter, by what they are about."""
    for group in GROUPS:
        yield f"### {_sentence(group.title).removesuffix('.')}"
        yield ""
        yield f"Labels: {', '.join(f'`{label}`' for label in group.labels)}." if group.labels else "Without labels."
        yield ""
        yield "| metric | meaning |"
        yield "|---|---|"
        for metric in group.metrics:
            yield f"| `{metric.name}` | {_cell(metric.help)} |"
        yield ""
    yield "### Names of other exporters"
    yield ""
    for group in ALIASES:
        names, labels = (
            ", ".join(f"`{one}`" for one in many) for many in ([m.name for m in group.metrics], group.labels)
        )
        yield f"- {_sentence(group.title).removesuffix('.')}, with {labels}: {names}"


def pages() -> Iterator[str]:
    """Yield links to the pages of the documentation, for the README."""
    links = [f"[{name}](gpuwatch/docs/{name}.md)" for name in PAGES]
    yield from textwrap.wrap(" · ".join(links), 120, break_long_words=False, break_on_hyphens=False)


def layers() -> Iterator[str]:
    """Yield the layers of the import contract, the highest first."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    for contract in settings["tool"]["importlinter"]["contracts"]:
        for number, layer in enumerate(contract.get("layers", ()), 1):
            modules = [f"`{name.strip()}`" for name in layer.replace("|", ":").split(":")]
            yield f"{number}. {', '.join(modules)}"


def tree() -> Iterator[str]:
    """Yield every file of the package with the first line of its docstring."""
    yield from _files(PACKAGE, "")


def _files(folder: Path, indent: str) -> Iterator[str]:
    entries = sorted(folder.iterdir(), key=lambda entry: (entry.is_dir(), entry.name))
    for entry in entries:
        if entry.is_dir() and entry.name != "__pycache__":
            inside = list(_files(entry, indent + "  "))
            if inside:  # of a folder that was moved away, compiled files may be left
                yield f"{indent}- `{entry.name}/`"
            yield from inside
        elif entry.is_file() and (words := _about(entry)):
            yield f"{indent}- `{entry.name}`: {words}"


_OTHER_FILES: Final = {
    ".tcss": "Style sheet of the dashboard.",
    ".j2": "Template of the page of a report.",
    "demo.json": "Script of the demo: people, processes and troubles.",
    "dashboard.json": "Dashboard for Grafana, generated.",
    "rules.yml": "Recording and alerting rules for Prometheus.",
    "scrape.yml": "Lines for prometheus.yml.",
    ".1": "Man page, generated.",
    ".bash": "Completions for bash, generated.",
    ".zsh": "Completions for zsh, generated.",
    ".fish": "Completions for fish, generated.",
    ".tcsh": "Completions for tcsh, generated.",
}


def _about(file: Path) -> str:
    """Return one line about a file; nothing for an empty one."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if file.suffix == ".md":
        return summary(file.stem) if file.parent == FOLDER else "This page."
    return _OTHER_FILES.get(file.name) or _OTHER_FILES.get(file.suffix, "")


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    one.__name__: one
    for one in (
        commands,
        flags,
        command_flags,
        exit_codes,
        figures,
        keys,
        terms,
        configuration,
        checks,
        stream,
        outputs,
        metrics,
        pages,
        layers,
        tree,
    )
}


def documents() -> list[Path]:
    """Return README.md, the design and the pages."""
    return [CHECKOUT / "README.md", PACKAGE / "README.md", *sorted(FOLDER.glob("*.md"))]


def filled(text: str) -> str:
    """Return a document with the tables as they are now."""
    return _BLOCK.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()).rstrip() + "\n" + found[3], text)


def main() -> None:
    """Write the files of `gpuwatch/shell`, then all tables."""
    for name, text in shell_files().items():
        (SHELL / name).write_text(text)
    for file in documents():
        file.write_text(filled(file.read_text()))


if __name__ == "__main__":
    main()
