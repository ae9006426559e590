"""Reader of one process: collects its facts from /proc and from its files, within limits. All texts are raw.

Any read may hang: a file on a server that is down, a process whose memory is locked by a driver. So only the inspector
process reads (`gpuwatch.inspector.worker`).
"""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import asdict, replace

from gpuwatch.base import procfs, programs
from gpuwatch.base.programs import CodeSource, SourceKind
from gpuwatch.declared import flags, frameworks, script_lines
from gpuwatch.declared.facts import (
    LOCAL_RANKS,
    Facts,
    FrameworkConfig,
    RelatedProcess,
    Script,
    ScriptContents,
    Share,
    Unread,
    Variables,
    format_path,
)
from gpuwatch.declared.script import read_script
from gpuwatch.inspector import cgroups, containers, files
from gpuwatch.inspector.credentials import Owner, acting_as, read_account, read_owner

LARGEST_SCRIPT = 1 << 20
_LARGEST_MODULE = 256 << 10
_SHARE_WORDS = rb"(?i)memory_fraction|gpu_memory|mem_fraction|mem(?:ory)?_limit|set_limit"
"""Words of code that may declare a share."""
LARGEST_RC = 64 << 10
LARGEST_CONFIG = 64 << 10
_LONGEST_ENVIRON = 256 << 10
"""Bytes of an environment, at most; more than of other files: on a cluster each loaded module adds to PATH, and Lmod
keeps its table of modules in variables, too (_ModuleTable001_: lmod.readthedocs.io)."""

_LONGEST_MAPS = 8 << 20
"""Bytes of /proc/PID/maps, at most: 65,530 mappings (vm.max_map_count) with lines of 128. Libraries come last."""

_LAST_PART = re.compile(rb"/([^/\n]*)$", re.MULTILINE)
"""Name of a file at the end of a line."""

_MOST_LIBRARIES = 4096
"""Names of libraries that are kept, at most; a training has some 300."""

_MOST_ANCESTORS = 16
_MOST_CHILDREN = 8
_MOST_LOOKED_AT = 64
"""Children whose environment is compared with their parent's, at most: most are forks, such as data loaders."""

_TICKS = os.sysconf("SC_CLK_TCK")
_CLOCK_READINGS = 3

_STARTING = 2.0
"""Seconds after a process's start in which a change of its source is the next one's of a loop: `python train.py &`,
`sed -i`, and again."""

_MOST_MODULES = 16
"""Modules in a script's folder that are named, at most."""
_MOST_TRIED = 200
"""Paths of modules that are searched in a script's folder, at most: most modules are installed elsewhere."""
_MODULES_DEEP = 8
"""Parts of an imported name (`a.b.c`) that are followed, at most."""

_LONGEST_SOCKETS = 4 << 20
"""Bytes of /proc/PID/net/unix, at most: a machine with 10,000 sockets has 1 MiB."""

_WORD = rb"[A-Za-z_]\w*"

Scanner = Callable[[str, bytes, Variables], ScriptContents]


@functools.lru_cache(maxsize=32)  # the processes of one rank run one script
def scan_source(name: str, source: bytes, variables: Variables = None) -> ScriptContents:
    """Return the declarations of a script for a process with these environment variables."""
    return read_script(source, name, variables)


class SourceImports(NamedTuple):
    """What a source imports, and the folders in which it lets Python look; see `declared.script_lines`."""

    names: tuple[str, ...]
    folders: tuple[str, ...]
    changed: bool
    """Whether it may look in other folders, too."""
    stub: tuple[tuple[str, bool], ...]


@functools.lru_cache(maxsize=32)
def find_imports(name: str, source: bytes) -> SourceImports:
    """Return what a source imports. Depends on its path and its bytes alone, which each process reads for itself."""
    folders, changed = script_lines.added_folders(source, name)
    stub = script_lines.stub_imports(source)
    return SourceImports((*script_lines.imported_names(source),), (*folders,), changed, (*stub.items(),))


class UnknownFolderError(OSError):
    """Raised for a relative path that means one file in the working directory and another one where PWD points."""


class Ancestor(NamedTuple):
    """Ancestor of a process, cached for its other descendants."""

    process: RelatedProcess
    uid: int


class _Target(NamedTuple):
    """Process that is read, with all that is needed to find its files."""

    proc: Path
    line: tuple[RelatedProcess, ...]
    """The process itself, its parent, …"""
    owner: Owner
    scan: Scanner

    def read_file(self, place: int, path: str, limit: int) -> files.FileContent:
        """Read a file by the path that a process of `line` has for it, with the owner's rights; raises OSError."""
        with acting_as(self.owner):
            return files.read_file(self.proc / str(self.line[place].pid), path, limit)

    def find_file(self, place: int, path: str, limit: int) -> tuple[files.FileContent, str]:
        """Read a file that a process of `line` has opened at its start, and return the folder of a relative path.

        The folder is empty where it is the working directory. A program may change that (`os.chdir`); the shell that
        started it left its own in PWD, which is out of date where a launcher has chosen the folder (`cwd=`). Where
        both have a file of this path, and not the same one, `UnknownFolderError` is raised.
        """
        environ = self.line[place].environ
        start = "" if isinstance(environ, Unread) else environ.get("PWD", "")
        if path.startswith("/") or not start.startswith("/"):
            return self.read_file(place, path, limit), ""
        if start == os.readlink(f"{self.proc}/{self.line[place].pid}/cwd"):  # noqa: PTH115 - a Path takes twice as long
            return self.read_file(place, path, limit), ""
        start = f"{start.rstrip('/')}/"
        try:
            found = self.read_file(place, path, limit)
        except (FileNotFoundError, NotADirectoryError):
            return self.read_file(place, start + path, limit), start
        try:
            other = self.read_file(place, start + path, limit)
        except OSError:  # the process cannot have opened it either
            return found, ""
        if other.entry != found.entry:
            raise UnknownFolderError(errno.EAGAIN, "it may be another file: the working directory has changed")
        return found, ""

    def was_edited(self, place: int, file: files.FileContent) -> bool | Unread:
        """Return whether a file was changed after the start of the program that runs it; CHANGED for soon after.

        A fork runs its parent's source. A file that is written and run at once is older: its start is rounded down to
        a tick, and Python takes longer than one to open a script.
        """
        first = self.line[place]
        for process in self.line[place + 1 :]:
            if process.argv != first.argv:
                break
            first = process
        # In this order: a pause between the two clocks makes files seem edited, which accuses nobody. The least of some
        # readings has no pause, on a busy machine too.
        since_boot = min(-time.time() + time.clock_gettime(time.CLOCK_BOOTTIME) for _ in range(_CLOCK_READINGS))
        later = file.modified + since_boot - first.start / _TICKS
        return Unread.CHANGED if 1 / _TICKS < later <= _STARTING else later > _STARTING


def read(
    pid: int,
    *,
    proc: Path = procfs.PROC,
    user: str = "",
    shares: Sequence[Share] = (),
    scan: Scanner = scan_source,
    ancestors: dict[int, Ancestor] | None = None,
    monitors: containers.Monitors | None = None,
) -> Facts:
    """Return the facts of a process; those that cannot be read are `Unread`.

    `user` is the name of its owner (default: from the user database). `ancestors` and `monitors` cache the
    ancestors of all processes. Raises OSError (`procfs.GONE` for a process that has ended) or ValueError where not even
    the owner can be read.
    """
    stat = procfs.read_stat(pid, proc)
    owner = read_owner(pid, proc)
    block = _read_environ(pid, proc, stat)
    libraries = frozenset[str]() if stat.kernel_thread else _read_libraries(pid, proc)
    above = _read_ancestors(stat.ppid, owner.uid, proc, {} if ancestors is None else ancestors)
    itself = _related(pid, stat, block, proc)
    target = _Target(proc, (itself, *above), owner, scan)
    script, unread_code = _find_script(target)
    cgroup = _read_cgroup(pid, proc)
    container = containers.find_container_id(pid, cgroup, proc, monitors)
    if container is not None and container == containers.read_mounts(os.getpid(), "/", proc)[0]:
        container = None  # gpuwatch runs in it, too, so that NVML lists the GPUs of this container
    return Facts(
        **asdict(itself),
        uid=owner.uid,
        user=user or read_account(owner.uid)[0],
        libraries=libraries,
        cgroup=cgroup,
        container="" if container is None else container.id,
        ancestors=above,
        children=tuple(_read_children(pid, owner.uid, block, proc)),
        script=script,
        unread_code=unread_code,
        mps=_reaches_mps(itself, proc),
        configs=_read_configs(target),
        rc=tuple(_read_rc(target)) if _may_be_theano(itself, libraries, script) else (),
        shares=tuple(shares),
    )


def reason(error: OSError) -> Unread:
    """Return why a file of a process could not be read."""
    if isinstance(error, PermissionError):
        return Unread.DENIED
    if isinstance(error, UnknownFolderError):
        return Unread.MOVED
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


# -- facts in /proc ------------------------------------------------------------------------------------------------


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


def _named_variables(variables: Mapping[str, str] | Unread, source: bytes) -> Variables:
    """Return the variables that a source mentions, and the ranks, by which its framework may choose a GPU."""
    if isinstance(variables, Unread):
        return None
    words = set(re.findall(_WORD, source)) if b"environ" in source or b"getenv" in source else set()
    names = {word.decode() for word in words} & variables.keys() | LOCAL_RANKS & variables.keys()
    return tuple((name, variables[name]) for name in sorted(names))


def _reaches_mps(process: RelatedProcess, proc: Path) -> bool:
    """Return whether an MPS daemon has its control socket where a process would connect to it.

    The kernel lists the sockets that are in use; the file of a daemon that was killed stays. Sources: proc_net(5);
    docs.nvidia.com/deploy/mps, "CUDA_MPS_PIPE_DIRECTORY".
    """
    variables = process.environ
    if isinstance(variables, Unread):
        return False
    folder = variables.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    if not os.path.lexists(f"{proc}/{process.pid}/root/{folder.lstrip('/')}/control"):
        return False  # without reading the table
    control = b" " + files.encode_environ(f"{folder.rstrip('/')}/control")
    for pid in (process.pid, os.getpid()):  # in a container the daemon may be the machine's
        try:
            table = procfs.read_file(pid, "net/unix", proc, _LONGEST_SOCKETS)
        except OSError:
            continue
        if any(line.endswith(control) for line in table.splitlines()):
            return True
    return False


def _read_libraries(pid: int, proc: Path) -> frozenset[str] | Unread:
    """Return the names of the shared libraries that are mapped: the last column of /proc/PID/maps."""
    names: set[bytes] = set()
    rest, size = b"", 0
    try:
        for part in procfs.read_chunks(pid, "maps", proc, _LONGEST_MAPS):
            size += len(part)
            whole, _, rest = (rest + part).rpartition(b"\n")
            names.update(name for name in _LAST_PART.findall(whole) if b".so" in name)
            if len(names) > _MOST_LIBRARIES:
                return Unread.TOO_LONG
    except OSError as error:
        return _reason_of(pid, proc, error)
    if size == _LONGEST_MAPS:
        return Unread.TOO_LONG
    return frozenset(files.decode_environ(name.removesuffix(b" (deleted)")) for name in names)


def _read_cgroup(pid: int, proc: Path) -> str:
    """Return the cgroup that names a container or a batch job, else that of version 2, else the longest.

    Where both versions are mounted, version 2 may name the daemon's cgroup, and only version 1 the container.
    """
    try:
        raw = procfs.read_file(pid, "cgroup", proc)
    except OSError:  # a kernel without cgroups; an ended process shows elsewhere
        return ""
    by_controller: dict[str, str] = {}
    for line in files.decode_environ(raw).splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        by_controller |= dict.fromkeys(controllers.split(","), path)
    paths = [by_controller.get(name, "") for name in ("", "memory", "devices", "name=systemd")]
    telling = (path for path in paths if cgroups.has_owner(path))
    return next(telling, "") or (paths[0] if len(paths[0]) > 1 else max(paths[:3], key=len))


def _read_ancestors(pid: int, uid: int, proc: Path, known: dict[int, Ancestor]) -> tuple[RelatedProcess, ...]:
    """Return a process (`pid`) and its ancestors, up to the first that has another real uid; the nearest first.

    PID 1 is included: in a container it may be the program itself.
    """
    ancestors: list[RelatedProcess] = []
    while pid > 0 and len(ancestors) < _MOST_ANCESTORS:
        try:
            if pid not in known:
                stat, owner = procfs.read_stat(pid, proc), read_owner(pid, proc)
                known[pid] = Ancestor(_related(pid, stat, _read_environ(pid, proc, stat), proc), owner.uid)
            one = known[pid]
        except (OSError, ValueError):  # it has ended: the present parent has not started the process below
            break
        if one.uid != uid:
            break
        ancestors.append(one.process)
        pid = one.process.parent
    return tuple(ancestors)


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
    children: list[RelatedProcess] = []
    for child in procfs.find_children(pid, proc)[:_MOST_LOOKED_AT]:
        if len(children) == _MOST_CHILDREN:
            break
        try:
            stat = procfs.read_stat(child, proc)
            theirs = _read_environ(child, proc, stat)
            if theirs == block or isinstance(_variables(theirs), Unread) or read_owner(child, proc).uid != uid:
                continue
            children.append(_related(child, stat, theirs, proc))
        except (OSError, ValueError):  # it has ended
            continue
    return children


# -- the source that it runs ---------------------------------------------------------------------------------------


class _Main(NamedTuple):
    """Source file that a process runs."""

    path: str
    data: bytes
    edited: bool = False
    likely: bool = False
    folder: str = ""
    """Folder of its modules, with a `/` at the end; empty for the working directory."""
    own: str = ""
    """Folder of the source itself."""


def _find_script(target: _Target) -> tuple[Script | None, str]:
    """Return the scanned script of a process; None where there is none, or it was not found, and why it is not read."""
    titled = False
    lost = "the process that started it, whose code it runs, was not found"
    for place, process in enumerate(target.line):
        argv = process.argv
        if argv and not programs.is_python(argv[0]) and _runs_python(target.proc, process.pid):
            argv = ("python", *argv[1:])  # `exec -a name python train.py`
        source = programs.find_source(argv)
        if source is None:
            # A process that shows a title has lost its arguments; those of its ancestors still name its source.
            if argv == process.argv or len(argv) > 1:
                python = bool(argv) and programs.is_python(argv[0])
                return None, flags.find_unread(argv) if python or not place else lost
            titled = True
        elif source.kind is SourceKind.CODE:
            code = _Main("-c", files.encode_environ(source.text), likely=titled)
            return _scan(target, place, code), ""
        elif source.kind is not SourceKind.WORKER:
            script = _read_script(target, place, source, titled=titled)
            return script, "" if script else flags.find_unread(argv)
    return None, lost


def _runs_python(proc: Path, pid: int) -> bool:
    try:
        return programs.is_python(str((proc / str(pid) / "exe").readlink()).removesuffix(" (deleted)"))
    except OSError:  # no permission, or it has ended
        return False


def _read_script(target: _Target, place: int, source: CodeSource, *, titled: bool) -> Script | None:
    module = source.kind is SourceKind.MODULE
    for path in _module_files(source.text) if module else [source.text]:
        shown = format_path(path)
        try:
            file, folder = target.find_file(place, path, LARGEST_SCRIPT)
        except FileNotFoundError:
            if module:
                continue  # an installed module, then: no script of the user's
            return Script(path=shown, contents=Unread.FAILED)
        except OSError as error:
            unknown = isinstance(error, UnknownFolderError)
            return None if module and not unknown else Script(path=shown, contents=reason(error))
        own = folder + path[: path.rfind("/") + 1]
        edited, likely = target.was_edited(place, file), file.likely or titled
        if isinstance(edited, Unread):
            return Script(path=shown, contents=edited)
        return _scan(target, place, _Main(path, file.data, edited, likely, folder if module else own, own))
    return None


def _scan(target: _Target, place: int, main: _Main) -> Script:
    """Scan a script, and find the modules that it imports from its folder."""
    process = target.line[place]
    contents = target.scan(main.path, main.data, _named_variables(target.line[0].environ, main.data))
    try:
        with acting_as(target.owner):
            modules, telling = _find_modules(target.proc / str(process.pid), main, target.line[0].environ)
    except PermissionError:  # root may not act as its owner here
        modules, telling = [], ""
    if (known := flags.find_program(process.argv)) is not None and not known.program.runs_others:
        modules, telling = [], ""
    if telling and isinstance(contents, ScriptContents):
        contents = replace(contents, changes=contents.changes or telling)
    return Script(
        path=format_path(main.path), contents=contents, edited=main.edited, likely=main.likely, modules=tuple(modules)
    )


def _find_modules(process: Path, main: _Main, variables: Mapping[str, str] | Unread) -> tuple[list[str], str]:
    """Return the code that a script imports and that is not parsed: modules of its folders, packages of a stub.

    The text is the first module that has a word of a share, and so may change what else declares; empty for none.
    """
    unread: dict[str, None] = {}
    telling = ""
    here: set[str] = set()
    tried = {main.path}
    found = find_imports(main.path, main.data)
    path = "" if isinstance(variables, Unread) else variables.get("PYTHONPATH", "")
    added = [*found.folders, *(f"{one.rstrip('/')}/" for one in path.split(":") if one)]
    own_folders = [main.folder, *(one for one in added if not one.endswith(("-packages/", "/python3/")))]
    for name, folder in ((name, folder) for name in found.names for folder in own_folders):
        root = name.partition(".")[0]
        if folder != main.folder and (not root or root in frameworks.PACKAGES):
            continue
        for paths in _module_paths(name, folder, main.own):
            if len(tried) > _MOST_TRIED or len(unread) == _MOST_MODULES:
                return [*unread], telling
            for path in paths if tried.isdisjoint(paths) else ():
                code = _code(process, path, main)
                if code:
                    unread[format_path(path)] = None
                if code and not telling and re.search(_SHARE_WORDS, code):
                    telling = format_path(path)
                if code is not None:
                    here.add(root)
                    break
            tried.update(paths)
    foreign = dict.fromkeys(found.names if found.changed else (), False) | dict(found.stub)
    for root, starts in ((name.partition(".")[0], starts) for name, starts in foreign.items()):
        known = root in sys.stdlib_module_names or (root in frameworks.PACKAGES and not starts)
        if root and root not in here and not known:
            unread[format_path(root)] = None
    return [*unread][:_MOST_MODULES], telling


def _module_paths(name: str, folder: str, own: str) -> Iterator[tuple[str, str]]:
    """Return the two possible paths of each part of a dotted name; the first that exists counts.

    `folder` has the program's modules, `own` the source that imports the name; both end with a `/` or are empty.
    Modules of the standard library have no path.
    """
    parts = [part for part in name.split(".") if part]
    above = len(name) - len(name.lstrip("."))
    if above:
        kept = own.rstrip("/").split("/") if own else []
        if above - 1 > len(kept):
            return
        folder = "".join(f"{part}/" for part in kept[: len(kept) - above + 1])
    elif parts and parts[0] in sys.stdlib_module_names:
        return
    for count in range(1, min(len(parts), _MODULES_DEEP) + 1):
        path = folder + "/".join(parts[:count])
        yield f"{path}/__init__.py", f"{path}.py"


def _code(process: Path, path: str, main: _Main) -> bytes | None:
    """Return the text of a file of the program, a blank where it cannot be read; None where it is not there."""
    try:
        return files.read_file(process, path, _LARGEST_MODULE).data
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        return None if main.likely else b" "  # in a folder that cannot be searched a missing file looks like any other
    except OSError:  # it is too long, or no regular file
        return b" "


def _module_files(name: str) -> list[str]:
    """Return the paths where `-m` finds a module that is a plain file below the working directory."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return []
    return ["/".join(parts) + ".py", "/".join(parts) + "/__main__.py"]


# -- servers -------------------------------------------------------------------------------------------------------


def _read_configs(target: _Target) -> dict[int, FrameworkConfig]:
    """Return the configuration files of the servers among a process and its ancestors, by PID."""
    configs = {}
    for place, process in enumerate(target.line):
        path = flags.config_file(process.argv)
        if path is None:
            continue
        shown = format_path(path)
        try:
            file, _ = target.find_file(place, path, LARGEST_CONFIG)
        except OSError as error:
            configs[process.pid] = FrameworkConfig(path=shown, text=reason(error))
            continue
        edited = target.was_edited(place, file)
        text = edited if isinstance(edited, Unread) else file.data.decode("utf-8", "replace")
        configs[process.pid] = FrameworkConfig(path=shown, text=text, edited=edited is True, likely=file.likely)
    return configs


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


def _read_rc(target: _Target) -> list[FrameworkConfig]:
    """Read Theano's configuration files, the most important one last. Source: theano/configparser.py."""
    environ = target.line[0].environ
    known: Mapping[str, str] = {} if isinstance(environ, Unread) else environ
    home = known.get("HOME") or read_account(target.owner.uid)[1]
    configs = []
    for path in known.get("THEANORC", "~/.theanorc").split(":"):
        full = home + path[1:] if path == "~" or path.startswith("~/") else path
        try:
            file = target.read_file(0, full, LARGEST_RC)
        except OSError:  # most have none; ConfigParser.read passes over one that cannot be opened, too
            continue
        shown = f"~{full.removeprefix(home)}" if home and full.startswith(f"{home}/") else full
        configs.append(FrameworkConfig(path=format_path(shown), text=file.data.decode("utf-8", "replace")))
    return configs
