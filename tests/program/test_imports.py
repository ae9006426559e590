"""Imports: no circle of files; only gpuwatch.sampler imports pynvml, only the screens Textual, only the fleet urllib3.

The sources are read, so that an import in a function is seen too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import psutil
import pytest

import gpuwatch
from tests.driver import Driver, Gpu
from tests.support.prometheus import certificate, fake_prometheus
from tests.support.terminal import in_terminal


def imported_in(source: str) -> set[str]:
    """Return the packages that a source imports anywhere, by a statement or by name: `import_module("pynvml")`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found.update(one.name for one in names)
            case ast.ImportFrom(module=str(name), level=0):
                found.add(name)
            case ast.Call(
                func=ast.Name(id=function) | ast.Attribute(attr=function), args=[ast.Constant(value=str(name)), *_]
            ) if function in ("import_module", "__import__"):
                found.add(name)
    return {name.partition(".")[0] for name in found}


@pytest.mark.parametrize(
    "statement",
    ["import pynvml", "from pynvml import nvmlInit", "importlib.import_module('pynvml')", "__import__('pynvml')"],
)
def test_an_import_in_a_function_is_seen(statement: str) -> None:
    assert "pynvml" in imported_in(f"def ask():\n    {statement}\n")


def test_no_function_outside_the_package_imports_the_library() -> None:
    root = Path(gpuwatch.__file__).parent
    imports = {path: imported_in(path.read_text()) for path in root.rglob("*.py")}
    for library, owners in (("pynvml", ["sampler"]), ("textual", ["ui", "fleet/ui"]), ("urllib3", ["fleet"])):
        importers = [path for path, names in imports.items() if library in names]
        assert importers
        assert [path for path in importers if not any(path.is_relative_to(root / owner) for owner in owners)] == []


def loaded_by(*modules: str, then: str = "") -> list[str]:
    """Return the names of all modules that are loaded where some are imported; `then` is run with them."""
    code = f"import sys, {', '.join(modules)}\n{then}\nprint(*sys.modules, sep='\\n')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_no_circle_of_files() -> None:
    """Imports for types alone and imports in functions count too."""
    graph = grimp.build_graph("gpuwatch", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert any("gpuwatch.config.reading" in names for names in imports.values())  # which a function imports
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"these files import one another: {' <- '.join(error.args[1])}")


def test_a_configuration_without_a_file_loads_no_reader() -> None:
    loaded = loaded_by("gpuwatch.config")
    assert "gpuwatch.config.types" in loaded
    assert [name for name in loaded if name in ("tomllib", "gpuwatch.config.keys", "gpuwatch.config.reading")] == []


def test_the_fleet_loads_nothing_that_ends_a_process() -> None:
    """What comes from another machine can be no PID here."""
    loaded = loaded_by("gpuwatch.commands.fleet", "gpuwatch.fleet.ui.fleet_app")
    assert "gpuwatch.fleet.ui.fleet_app" in loaded
    assert [name for name in loaded if name.startswith("gpuwatch.kill")] == []


def test_the_dashboard_loads_no_store_and_no_other_machine() -> None:
    loaded = loaded_by("gpuwatch.ui.app", "gpuwatch.ui.replay")
    assert "gpuwatch.ui.replay" in loaded
    others = ("gpuwatch.recorder", "gpuwatch.fleet", "gpuwatch.export", "sqlite3")
    assert [name for name in loaded if name.startswith(others)] == []


def test_one_snapshot_loads_its_table_after_the_sampler_has_begun_and_no_screen() -> None:
    before = loaded_by("gpuwatch.commands.once")
    table = ("gpuwatch.commands.snapshot_table", "gpuwatch.alerts.rules", "gpuwatch.history", "gpuwatch.model.fields")
    assert "gpuwatch.commands.startup" in before
    assert [name for name in before if name.startswith(table)] == []
    after = loaded_by(
        "gpuwatch.cli", "gpuwatch.commands.once", "gpuwatch.commands.snapshot_table", "gpuwatch.sources.local"
    )
    assert set(table) <= set(after)
    others = ("gpuwatch.ui", "textual", "rich", "gpuwatch.recorder", "gpuwatch.fleet", "gpuwatch.export", "sqlite3")
    assert [name for name in after if name.startswith((*others, "gettext", "locale", "shutil"))] == []


_DRAWING = """
from gpuwatch.history.history import History
from gpuwatch.monitor import Frame
from gpuwatch.sources.demo import DemoSource
from gpuwatch.ui.draw import dashboard, footer, keys, lines, theme, view
seen, styles = DemoSource().at(60.0), theme.make_styles("gpuwatch-dark")
shown = view.View(Frame(seen, 60.0, History().add(seen, 60.0)), 60.0, styles, 1.0)
drawn = dashboard.draw(shown, dashboard.DashboardState(), (160, 50), footer.hints(keys.KEYS))
panels = (*drawn.header, *drawn.gpus, *drawn.alerts.lines, *drawn.processes, drawn.footer.line)
screen = [lines.plain(line) for line in panels]
assert len(screen) + drawn.gap * (1 + bool(drawn.alerts.lines)) == 50, screen
assert "H100" in screen[2], screen
"""
"""Draws the whole dashboard."""


def test_what_draws_loads_no_textual_and_of_rich_the_width_of_cells_alone() -> None:
    """Where all modules load none of it together, each alone does not."""
    folder = Path(gpuwatch.__file__).parent / "ui" / "draw"
    names = [f"gpuwatch.ui.draw.{file.stem}" for file in folder.glob("[!_]*.py")]
    loaded = loaded_by("gpuwatch.ui.draw", *names, then=_DRAWING)
    assert {"gpuwatch.ui.draw.theme", "gpuwatch.sources.demo", *names} <= set(loaded)
    others = ("textual", "rich.", "gpuwatch.recorder", "gpuwatch.fleet", "gpuwatch.export", "sqlite3")
    assert [name for name in loaded if name.startswith(others) and not name.startswith(("rich.cells", "rich._"))] == []


_LATE = (
    *("platform", "typing_extensions", "ssl", "hashlib", "_hashlib", "difflib", "tempfile", "asyncio", "socket"),
    *("subprocess", "dataclasses", "inspect", "random", "json", "tomllib", "sqlite3", "psutil", "rich.console"),
    *("textual", "gpuwatch.config.reading", "gpuwatch.recorder", "gpuwatch.fleet", "gpuwatch.kill.pinned"),
)
"""What neither the first frame nor `--once` needs: _hashlib and ssl load OpenSSL, which takes 3 ms and 1 MiB."""


@pytest.mark.parametrize(
    ("line", "last", "late"),
    [
        ("", ["gpuwatch.commands.dashboard_app", "gpuwatch.ui.first_frame"], ["shutil", "bz2", "lzma"]),
        ("--once --gpu 0", ["gpuwatch.commands.once"], ["gpuwatch.ui", "gpuwatch.monitor"]),
    ],
)
def test_a_start_loads_nothing_that_can_wait(line: str, last: list[str], late: list[str]) -> None:
    ours = ["gpuwatch.__main__", "gpuwatch.cli", "gpuwatch.sources.local", *last]
    loaded = loaded_by(*ours, then=f"gpuwatch.cli.parse({line.split()})")
    assert set(ours) <= set(loaded)
    assert sorted({*_LATE, *late}.intersection(loaded)) == []


def test_the_inspector_loads_nothing_that_few_processes_need() -> None:
    loaded = loaded_by("gpuwatch.__main__", "gpuwatch.sampler.__main__", "gpuwatch.inspector.worker")
    assert {"dataclasses", "inspect", "difflib", "shutil", "textwrap", "urllib.parse", "ipaddress"}.isdisjoint(loaded)


def test_a_path_has_an_address_although_its_module_was_imported_without_urllib() -> None:
    assert (
        loaded_by("gpuwatch.__main__", then="print(sys.modules['pathlib'].Path('/ä b').as_uri())")[0]
        == "file:///%C3%A4%20b"
    )


_TLS_LATER = """
import sys, gpuwatch.__main__
from gpuwatch.commands.dashboard_app import import_less
with import_less():
    import gpuwatch.ui.app
assert "ssl" not in sys.modules and "typing_extensions" not in sys.modules
from gpuwatch.config.types import FleetSettings
from gpuwatch.fleet.prometheus import PrometheusClient
print(PrometheusClient(FleetSettings(ca_file=sys.argv[1]), sys.argv[2]).query("up"))
"""


def test_tls_works_in_the_process_of_a_dashboard_whose_asyncio_has_none(tmp_path: Path) -> None:
    good = certificate(tmp_path, "127.0.0.1")
    with fake_prometheus(tls=good) as fake:
        command = [sys.executable, "-c", _TLS_LATER, str(good), fake.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.slow
def test_the_driver_is_loaded_by_the_sampler_alone(driver: Driver) -> None:
    driver.gpus = [Gpu(0), Gpu(1)]
    driver.write()
    with in_terminal(columns=100, env=driver.env()) as terminal:
        terminal.wait_for(lambda one: "2 GPUs" in one.lines[0])
        terminal.send("e")  # a screen of its own, and what it loads
        terminal.wait_for(lambda one: "2 GPUs" not in one.lines[0])
        program = psutil.Process(terminal.process.pid)
        family = [program, *program.children(recursive=True)]
        loaded = [one.pid for one in family if "libnvidia-ml" in Path(f"/proc/{one.pid}/maps").read_text()]
        assert len(family) > 1
        assert len(loaded) == 1
        assert loaded != [program.pid]
        terminal.send("q")
        terminal.quit()


def test_the_inspector_imports_nothing_before_it_is_asked() -> None:
    code = "import sys; from gpuwatch.inspector import __main__ as program; program.IDLE = 0.05; program.main()"
    with subprocess.Popen([sys.executable, "-c", f"{code}; print(*sys.modules)"], stdin=-1, stdout=-1, text=True) as it:
        assert it.stdout is not None
        assert "gpuwatch.inspector.worker" not in it.stdout.read().split()
