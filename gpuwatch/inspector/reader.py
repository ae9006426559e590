"""Reader of one process: collects its facts from /proc and from its files, within limits. All texts are raw.

Any read may hang: a file on a server that is down, a process whose memory is locked by a driver. So only the inspector
process reads (`gpuwatch.inspector.worker`).
"""

from __future__ import annotations

import functools
import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from gpuwatch import procfs, programs
from gpuwatch.declared import flags, script
from gpuwatch.declared.facts import (
    RANKS,
    Config,
    Facts,
    File,
    Ranks,
    RelatedProcess,
    Script,
    ScriptContents,
    Share,
    Unread,
)
from gpuwatch.inspector import cgroups, files
from gpuwatch.inspector.credentials import acting_as
from gpuwatch.programs import Source, SourceKind
from gpuwatch.text import clean

LARGEST_SCRIPT = 1 << 20
LARGEST_RC = 64 << 10
LARGEST_CONFIG = 64 << 10
_LONGEST_ENVIRON = 256 << 10
"""Bytes of an environment, at most; more than of other files: on a cluster each loaded module adds to PATH, and Lmod
keeps its table of modules in variables, too (_ModuleTable001_: lmod.readthedocs.io)."""

_LONGEST_MAPS = 8 << 20
"""Bytes of /proc/PID/maps, at most: 65,530 mappings (vm.max_map_count) with lines of 128. Libraries come last."""

_MOST_LIBRARIES = 4096
"""Names of libraries that are kept, at most; a training has some 300."""

_MOST_ANCESTORS = 16
_MOST_CHILDREN = 8
_MOST_LOOKED_AT = 64
"""Children whose environment is compared with their parent's, at most: most are forks, such as data loaders."""

_LATER = 1.0
"""Seconds after a process's start from which a changed file counts as edited: clocks differ."""

_TICKS = os.sysconf("SC_CLK_TCK")

_MOST_MODULES = 16
"""Files beside a script that are read, at most; together with the script they have at most `LARGEST_SCRIPT` bytes."""
_MOST_TRIED = 200
"""Module names that are searched beside a script, at most: most modules are installed elsewhere."""

Sources = tuple[tuple[str, bytes], ...]
"""Sources of a program, each with its display name: its script, then its modules."""
Scanner = Callable[[Sources, Ranks], tuple[ScriptContents, ...]]


@functools.lru_cache(maxsize=32)  # the processes of one rank run one script
def scan_sources(sources: Sources, ranks: Ranks = None) -> tuple[ScriptContents, ...]:
    """Return what the sources of a program declare to a process with these ranks."""
    return script.read_scripts(sources, ranks)


class Ancestor(NamedTuple):
    """Ancestor of a process, cached for its other descendants."""

    process: RelatedProcess
    uid: int


class _Target(NamedTuple):
    """Process that is read, with all that is needed to find its files."""

    proc: Path
    line: tuple[RelatedProcess, ...]
    """The process itself, its parent, …"""
    owner: procfs.Owner
    scan: Scanner
    ranks: Ranks

    def read_file(self, place: int, path: str, limit: int) -> files.Found:
        """Read a file by the path that a process of `line` has for it, with the owner's rights; raises OSError."""
        with acting_as(self.owner):
            return files.read_file(self.proc / str(self.line[place].pid), path, limit)

    def was_edited(self, place: int, file: files.Found) -> bool:
        """Return whether a file was changed after the program started that runs it; a fork runs its parent's source."""
        first = self.line[place]
        for process in self.line[place + 1 :]:
            if process.argv != first.argv:
                break
            first = process
        # In this order: a pause between the two clocks makes the start seem later, and no file seem edited.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - first.start / _TICKS
        return file.modified > time.time() - age + _LATER


def read(
    pid: int,
    *,
    proc: Path = procfs.PROC,
    user: str = "",
    shares: Sequence[Share] = (),
    scan: Scanner = scan_sources,
    ancestors: dict[int, Ancestor] | None = None,
) -> Facts:
    """Return the facts of a process; those that cannot be read are `Unread`.

    `user` is the name of its owner (default: from the user database). `ancestors` caches the ancestors of all
    processes. Raises OSError (`procfs.GONE` for a process that has ended) or ValueError where
    not even the owner can be read.
    """
    stat = procfs.read_stat(pid, proc)
    owner = procfs.read_owner(pid, proc)
    block = _read_environ(pid, proc, stat)
    libraries = frozenset[str]() if stat.kernel_thread else _read_libraries(pid, proc)
    above = _read_ancestors(stat.ppid, owner.uid, proc, {} if ancestors is None else ancestors)
    itself = _related(pid, stat, block, proc)
    target = _Target(proc, (itself, *above), owner, scan, _ranks(itself.environ))
    script, modules = _find_script(target)
    return Facts(
        pid=pid,
        uid=owner.uid,
        user=user or _user_name(owner.uid),
        argv=itself.argv,
        argv_cut=itself.argv_cut,
        environ=itself.environ,
        libraries=libraries,
        cgroup=_read_cgroup(pid, proc),
        ancestors=above,
        children=tuple(_read_children(pid, owner.uid, block, proc)),
        script=script,
        modules=modules,
        configs=_read_configs(target),
        rc=tuple(_read_rc(target)) if _may_be_theano(itself, libraries, script) else (),
        shares=tuple(shares),
    )


def reason(error: OSError) -> Unread:
    """Return why a file of a process could not be read."""
    if isinstance(error, PermissionError):
        return Unread.DENIED
    return Unread.ENDED if isinstance(error, ProcessLookupError) else Unread.FAILED


def _reason_of(pid: int, proc: Path, error: OSError) -> Unread:
    """Return why a file of a process's own memory could not be read.

    Where only its first thread has ended, a kernel since 6.16 fails with ESRCH, as for a process that has ended.
    """
    if isinstance(error, FileNotFoundError):
        return Unread.ENDED
    try:
        if isinstance(error, ProcessLookupError) and not procfs.has_ended(pid, proc):
            return Unread.FAILED
    except (OSError, ValueError):  # it has ended meanwhile
        return Unread.ENDED
    return reason(error)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# -- what /proc has of a process -----------------------------------------------------------------------------------


def _read_argv(pid: int, proc: Path) -> tuple[tuple[str, ...], bool]:
    """Return the arguments that were read completely, and whether there are more."""
    try:
        words, cut = procfs.read_arguments(pid, proc)
    except OSError:  # it has ended, which its environment shows, too
        return (), False
    return (words[:-1] if cut else words), cut


def _read_environ(pid: int, proc: Path, stat: procfs.Stat) -> bytes | Unread:
    """Read the environment; an empty one counts as unread where the process has ended or is in execve(2)."""
    if stat.kernel_thread:
        return b""
    try:
        raw = procfs.read_file(pid, "environ", proc, _LONGEST_ENVIRON + 1)
        if not raw:
            stat = procfs.read_stat(pid, proc)
            if stat.state in procfs.DEAD:  # or only its first thread has ended
                return Unread.ENDED if procfs.has_ended(pid, proc) else Unread.FAILED
            if not stat.environ_end:
                return Unread.FAILED
            raw = procfs.read_file(pid, "environ", proc, _LONGEST_ENVIRON + 1)  # that execve has ended meanwhile
    except OSError as error:
        return _reason_of(pid, proc, error)
    except ValueError:  # a line of stat that was cut short
        return Unread.ENDED
    return raw if len(raw) <= _LONGEST_ENVIRON else Unread.TOO_LONG


def _variables(block: bytes | Unread) -> dict[str, str] | Unread:
    return block if isinstance(block, Unread) else files.parse_environ(block)


def _ranks(variables: Mapping[str, str] | Unread) -> Ranks:
    """Return the rank variables in the environment of a process, by which its script may choose a GPU."""
    if isinstance(variables, Unread):
        return None
    return tuple((name, variables[name]) for name in sorted(RANKS & variables.keys()))


def _read_libraries(pid: int, proc: Path) -> frozenset[str] | Unread:
    """Return the names of the shared libraries that are mapped: the last column of /proc/PID/maps."""
    names: set[str] = set()
    rest, size = b"", 0
    try:
        for part in procfs.read_chunks(pid, "maps", proc, _LONGEST_MAPS):
            size += len(part)
            *lines, rest = (rest + part).split(b"\n")
            names.update(_library_names(lines))
            if len(names) > _MOST_LIBRARIES:
                return Unread.TOO_LONG
    except OSError as error:
        return _reason_of(pid, proc, error)
    return Unread.TOO_LONG if size == _LONGEST_MAPS else frozenset(names)


def _library_names(lines: Iterable[bytes]) -> Iterator[str]:
    for path in {line[line.find(b"/") :] for line in lines if b".so" in line}:
        name = files.decode_environ(path.rpartition(b"/")[2].removesuffix(b" (deleted)"))
        if ".so" in name:
            yield name


def _read_cgroup(pid: int, proc: Path) -> str:
    """Return the cgroup that names a container or a batch job, else that of version 2, else the longest.

    Where both versions are mounted, version 2 may name the daemon's cgroup, and only version 1 the container.
    """
    try:
        raw = procfs.read_file(pid, "cgroup", proc)
    except OSError:  # a kernel without cgroups; an ended process shows elsewhere
        return ""
    found: dict[str, str] = {}
    for line in files.decode_environ(raw).splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        found |= dict.fromkeys(controllers.split(","), path)
    paths = [found.get(name, "") for name in ("", "memory", "devices", "name=systemd")]
    telling = (path for path in paths if cgroups.has_owner(path))
    return next(telling, "") or (paths[0] if len(paths[0]) > 1 else max(paths[:3], key=len))


def _read_ancestors(pid: int, uid: int, proc: Path, known: dict[int, Ancestor]) -> tuple[RelatedProcess, ...]:
    """Return a process (`pid`) and its ancestors, up to the first that has another real uid; the nearest first.

    PID 1 is included: in a container it may be the program itself.
    """
    found: list[RelatedProcess] = []
    while pid > 0 and len(found) < _MOST_ANCESTORS:
        try:
            if pid not in known:
                stat, owner = procfs.read_stat(pid, proc), procfs.read_owner(pid, proc)
                known[pid] = Ancestor(_related(pid, stat, _read_environ(pid, proc, stat), proc), owner.uid)
            one = known[pid]
        except (OSError, ValueError):  # it has ended: the present parent has not started the process below
            break
        if one.uid != uid:
            break
        found.append(one.process)
        pid = one.process.parent
    return tuple(found)


def _related(pid: int, stat: procfs.Stat, block: bytes | Unread, proc: Path) -> RelatedProcess:
    argv, cut = _read_argv(pid, proc)
    return RelatedProcess(
        pid=pid,
        argv=argv,
        argv_cut=cut,
        environ=_variables(block),
        start=stat.start_ticks,
        parent=stat.ppid,
        comm=files.decode_environ(stat.comm),
    )


def _read_children(pid: int, uid: int, block: bytes | Unread, proc: Path) -> list[RelatedProcess]:
    """Return the children that have exec'ed after the process changed its environment: theirs shows the changes.

    A child that has only forked shows the same bytes as its parent.
    """
    found: list[RelatedProcess] = []
    for child in procfs.find_children(pid, proc)[:_MOST_LOOKED_AT]:
        if len(found) == _MOST_CHILDREN:
            break
        try:
            stat = procfs.read_stat(child, proc)
            theirs = _read_environ(child, proc, stat)
            if theirs == block or isinstance(_variables(theirs), Unread) or procfs.read_owner(child, proc).uid != uid:
                continue
            found.append(_related(child, stat, theirs, proc))
        except (OSError, ValueError):  # it has ended
            continue
    return found


# -- the source that it runs ---------------------------------------------------------------------------------------


_Program: TypeAlias = tuple[Script | None, tuple[Script, ...]]
"""A script, and the modules of its folder."""
_NO_SCRIPT: _Program = (None, ())


class _Main(NamedTuple):
    """Source file that a process runs."""

    path: str
    """Path for display."""
    data: bytes
    edited: bool = False
    likely: bool = False
    folder: str = ""
    """Folder of its modules, with a `/` at the end; empty for the working directory."""
    own: str = ""
    """Folder of the source itself."""


def _find_script(target: _Target) -> _Program:
    """Return the scanned Python source of a process and its modules; None where there is none, or it was not found."""
    titled = False
    for place, process in enumerate(target.line):
        source = programs.find_source(process.argv)
        if source is None:
            # A process that shows a title has lost its arguments; those of its ancestors still name its source.
            known = programs.is_python(process.argv[0] if process.argv else "")
            if known or not _runs_python(target.proc, process.pid):
                return _NO_SCRIPT
            titled = True
        elif source.kind is SourceKind.CODE:
            return _scan(target, place, _Main("-c", files.encode_environ(source.text), likely=titled))
        elif source.kind is not SourceKind.WORKER:
            return _read_script(target, place, source, titled=titled)
    return _NO_SCRIPT


def _runs_python(proc: Path, pid: int) -> bool:
    try:
        return programs.is_python(str((proc / str(pid) / "exe").readlink()))
    except OSError:  # not ours to see, or it has ended
        return False


def _read_script(target: _Target, place: int, source: Source, *, titled: bool) -> _Program:
    module = source.kind is SourceKind.MODULE
    for path in _module_files(source.text) if module else [source.text]:
        shown = clean(path, 200)
        try:
            file = target.read_file(place, path, LARGEST_SCRIPT)
        except FileNotFoundError:
            if module:
                continue  # an installed module, then: no script of the user's
            return Script(path=shown, contents=Unread.FAILED), ()
        except OSError as error:
            return _NO_SCRIPT if module else (Script(path=shown, contents=reason(error)), ())
        own = path[: path.rfind("/") + 1]
        edited, likely = target.was_edited(place, file), file.likely or titled
        return _scan(target, place, _Main(shown, file.data, edited, likely, "" if module else own, own))
    return _NO_SCRIPT


def _scan(target: _Target, place: int, main: _Main) -> _Program:
    """Scan a script with the modules that it imports from its folder."""
    try:
        with acting_as(target.owner):
            found = _modules(target.proc / str(target.line[place].pid), main)
    except PermissionError:  # root may not act as its owner here
        found = {}
    read = {clean(path, 200): one for path, one in found.items() if not isinstance(one, Unread)}
    sources = ((main.path, main.data), *((path, one.data) for path, one in read.items()))
    scan, *scans = target.scan(sources, target.ranks)
    modules = [
        Script(path=path, contents=scan, edited=target.was_edited(place, one), likely=True)
        for (path, one), scan in zip(read.items(), scans, strict=True)
    ]
    modules += [Script(path=clean(path, 200), contents=one) for path, one in found.items() if isinstance(one, Unread)]
    return Script(path=main.path, contents=scan, edited=main.edited, likely=main.likely), tuple(modules)


def _modules(process: Path, main: _Main) -> dict[str, files.Found | Unread]:
    """Read the modules that a script imports from its folder; list, but do not read, the modules that these import."""
    found: dict[str, files.Found | Unread] = {}
    tried = {main.path}
    room, count = LARGEST_SCRIPT - len(main.data), 0
    for paths in _candidates(main.data, main.folder, main.own, tried):
        full = count == _MOST_MODULES
        path, file = _module(process, paths, 0 if full else room, main)
        if isinstance(file, files.Found):
            room, count = room - len(file.data), count + 1
        elif full and file is Unread.FAILED:
            file = Unread.SKIPPED
        if file is not None:
            found[path] = file
    for path, file in [*found.items()]:
        if isinstance(file, Unread):
            continue
        for paths in _candidates(file.data, main.folder, path[: path.rfind("/") + 1], tried):
            inner, one = _module(process, paths, 0, main)  # an empty one, which has nothing to say, can be read
            if isinstance(one, Unread):
                found[inner] = Unread.SKIPPED if one is Unread.FAILED else one
    return found


def _candidates(source: bytes, folder: str, own: str, tried: set[str]) -> Iterator[tuple[str, str]]:
    """Return the possible paths of the modules that a source imports (see `script.module_files`), unless in `tried`."""
    for name in script.imported_names(source):
        for paths in script.module_files(name, folder, own):
            if len(tried) < 2 * _MOST_TRIED and tried.isdisjoint(paths):
                tried.update(paths)
                yield paths


def _module(process: Path, paths: tuple[str, str], room: int, main: _Main) -> tuple[str, files.Found | Unread | None]:
    """Read the first of two possible files of a module, up to `room` bytes; None where neither is the program's."""
    for path in paths:
        try:
            return path, files.read_file(process, path, room)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            # In a tree that is closed to us nothing tells what is not there.
            return path, None if main.likely else Unread.DENIED
        except OSError:
            return path, Unread.FAILED
    return paths[0], None


def _module_files(name: str) -> list[str]:
    """Return the paths where `-m` finds a module that is a plain file below the working directory."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return []
    return ["/".join(parts) + ".py", "/".join(parts) + "/__main__.py"]


# -- servers -------------------------------------------------------------------------------------------------------


def _read_configs(target: _Target) -> dict[int, Config]:
    """Return the configuration files of the servers among a process and its ancestors, by PID."""
    found = {}
    for place, process in enumerate(target.line):
        path = flags.config_file(process.argv)
        if path is None:
            continue
        shown = clean(path, 200)
        try:
            file = target.read_file(place, path, LARGEST_CONFIG)
        except OSError as error:
            found[process.pid] = Config(path=shown, text=reason(error))
            continue
        text, edited = file.data.decode("utf-8", "replace"), target.was_edited(place, file)
        found[process.pid] = Config(path=shown, text=text, edited=edited, likely=file.likely)
    return found


# -- Theano --------------------------------------------------------------------------------------------------------


def _may_be_theano(itself: RelatedProcess, libraries: frozenset[str] | Unread, script: Script | None) -> bool:
    """Return whether a process could use Theano; only then a file in its owner's home is read."""
    words = list(itself.argv)
    if not isinstance(itself.environ, Unread):
        words += [*itself.environ, itself.environ.get("KERAS_BACKEND", "")]
    if not isinstance(libraries, Unread):
        words += libraries
    if script is not None and not isinstance(script.contents, Unread):
        words += script.contents.imports
    text = "\n".join(words).lower()
    return any(mark in text for mark in ("theano", "gpuarray", "cuda_ndarray"))


def _read_rc(target: _Target) -> list[File]:
    """Read Theano's configuration files, the most important one last. Source: theano/configparser.py."""
    environ = target.line[0].environ
    known: Mapping[str, str] = {} if isinstance(environ, Unread) else environ
    home = known.get("HOME") or _home(target.owner.uid)
    found = []
    for path in known.get("THEANORC", "~/.theanorc").split(":"):
        full = home + path[1:] if path == "~" or path.startswith("~/") else path
        try:
            file = target.read_file(0, full, LARGEST_RC)
        except OSError:  # most have none; ConfigParser.read passes over one that cannot be opened, too
            continue
        shown = f"~{full.removeprefix(home)}" if home and full.startswith(f"{home}/") else full
        found.append(File(path=clean(shown, 200), text=file.data.decode("utf-8", "replace")))
    return found


def _home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""
