"""What of a script runs, what may, and what never does."""

from __future__ import annotations

import pytest

from gpuwatch.declared import script
from gpuwatch.declared.script import read_script
from gpuwatch.model.snapshot import Confidence
from tests.declared.scanning import LIKELY, LIMIT, TF, TORCH, read
from tests.declared.tables import Case, cases

CALL = "torch.cuda.set_per_process_memory_fraction(0.3)"


def conditions(template: str, **environ: str) -> list[str]:
    """Return the conditions of the candidates in the places of HERE, in a process with these variables."""
    source = template.replace("HERE", LIMIT).replace("CALL", CALL)
    found = read_script(source, "train.py", tuple(environ.items()))
    assert not found.error
    for one in found.candidates:
        assert one.confidence is (Confidence.POSSIBLE if one.condition else LIKELY)
    return [one.condition for one in found.candidates]


@cases("declared/conditions")
def test_a_condition_is_followed_dropped_or_quoted(case: Case) -> None:
    """HERE is a statement that limits, CALL an expression that does."""
    before = {"": "", "tf": TF, "torch": TORCH}[case.get("before", "")]
    assert conditions(before + case["source"], **case.get("environ", {})) == case["conditions"]


def test_an_environment_that_is_not_known_decides_nothing() -> None:
    for source in ("", "from dotenv import load_dotenv\nload_dotenv()\n"):
        known = () if source else None
        found = read_script(f"{source}import os\nif os.environ.get('SHARED'):\n  {LIMIT}", "train.py", known)
        assert [one.condition for one in found.candidates] == ["if `os.environ.get('SHARED')`"]


def test_a_condition_is_quoted_clean_short_and_without_secrets() -> None:
    (one,) = conditions(f"if login(password='hunter2-hunter2') and x == '\u202e\x1b[31m{'y' * 300}':\n  HERE")
    assert "hunter2" not in one
    assert "\u202e" not in one
    assert "\x1b" not in one
    assert len(one) == len("if ``") + 60
    deep = "".join(f"{' ' * n}if a{n}:\n" for n in range(90))
    (one,) = conditions(f"{deep}{' ' * 90}HERE")
    assert one == "if `a88` and if `a89`"


def test_hundreds_of_branches_are_followed_one_after_the_other() -> None:
    source = "if a == 0:\n  pass\n" + "".join(f"elif a == {n}:\n  HERE\n" for n in range(1, 800))
    assert len(conditions(source)) == script.MOST


@pytest.mark.uncounted
@pytest.mark.parametrize(
    "source",
    [
        "x = " + " or ".join(["a"] * 20_000) + f"\n{LIMIT}",
        "x = " + "a if b else " * 80 + f"c\n{LIMIT}",
        "x = " + "not (" * 80 + "a if b else c" + ")" * 80 + f"\nif x:\n  {LIMIT}",
        f"if {'(' * 60}a if b else c{') if d else e' * 60}:\n  {LIMIT}",
        "".join(f"a{n} = a{n + 1} if a{n + 1} else a{n + 1}\n" for n in range(2000)) + f"if a0:\n  {LIMIT}",
        "".join(f"def f{n}():\n  f{n + 1}()\n" for n in range(2000)) + f"def f2000():\n  {LIMIT}",
    ],
)
def test_a_script_that_is_made_to_take_long_is_read_at_once(source: str) -> None:
    assert len(read(source).candidates) == 1


def test_a_source_that_declares_thousands_of_things_is_cut_short_and_says_so() -> None:
    found = read("".join(f"os.environ['TF_{n}'] = '1'\n" for n in range(20 * script.MOST)), "import os\n")
    assert len(found.settings) == script.MOST
    assert found.settings[0][0] == "TF_0"
    assert "declares too much" in found.hints[0].words
