"""What of a script runs, what may, and what never does."""

from __future__ import annotations

import pytest

from gpuwatch.declared import script
from gpuwatch.declared.script import read_script
from gpuwatch.model import Confidence
from tests.support.scanning import LIKELY, LIMIT, TF, TORCH, read

POSSIBLE = Confidence.POSSIBLE


def conditions(template: str, **environ: str) -> list[str]:
    """Return the conditions of the candidates in the places of HERE, in a process with these variables."""
    found = read_script(template.replace("HERE", LIMIT), "train.py", tuple(environ.items()))
    assert not found.error
    for one in found.candidates:
        assert one.confidence is (POSSIBLE if one.condition else LIKELY)
    return [one.condition for one in found.candidates]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # What counts
        ("HERE", [""]),
        ("if __name__ == '__main__':\n  HERE\nelse:\n  HERE", [""]),
        ("for i in x:\n  HERE\nelse:\n  HERE", ["", ""]),
        ("with x:\n  HERE", [""]),
        ("while True:\n  HERE", [""]),
        ("try:\n  HERE\nexcept E:\n  pass\nelse:\n  HERE\nfinally:\n  HERE", ["", "", ""]),
        ("def f():\n  HERE", [""]),
        ("def f():\n  HERE\nf()", [""]),
        ("async def f():\n  async with x:\n    HERE\n  async for y in z:\n    HERE", ["", ""]),
        ("@app.command()\ndef f():\n  HERE", [""]),
        ("class A:\n  HERE\n  def f(self):\n    HERE", ["", ""]),
        ("def f():\n  HERE\nif args.many:\n  spawn(f)\nelse:\n  f()", [""]),
        # What a process with a GPU, or literals decide
        ("import torch\nif torch.cuda.is_available():\n  HERE\nelse:\n  HERE", [""]),
        ("import torch\nuse = torch.cuda.is_available()\nif not use:\n  HERE\nelse:\n  HERE", [""]),
        ("import torch\nif torch.cuda.device_count() > 0:\n  HERE", [""]),
        ("from torch import *\nd = device('cuda' if cuda.is_available() else 0)\nif d.type == 'cuda':\n HERE", [""]),
        (TF + "if gpus:\n  try:\n    HERE\n  except RuntimeError as e:\n    print(e)", [""]),
        (TF + "if len(gpus) > 0:\n  HERE\nelse:\n  HERE", [""]),
        (TF + "if len(gpus) >= 1:\n  HERE", [""]),
        (TF + "if not gpus:\n  raise SystemExit\nHERE", [""]),
        ("if False:\n  HERE", []),
        ("if 0:\n  HERE\nelse:\n  HERE", [""]),
        ("DEBUG = False\nif DEBUG:\n  HERE", []),
        ("DEBUG = False\nif DEBUG and args.x:\n  HERE", []),
        ("N = 4\nif N >= 2 and N in (2, 4):\n  HERE", [""]),
        ("while 0:\n  HERE", []),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  HERE", []),
        ("if 0:\n  def f():\n    HERE", []),
        ("import sys\nsys.exit(main())\nHERE", []),
        ("raise SystemExit\nHERE", []),
        ("def f():\n  return\n  HERE", []),
        ("def f():\n  if 1:\n    return\n  HERE", []),
        ("for i in x:\n  continue\n  HERE\nHERE", [""]),
        ("'''\nHERE\n'''\n# HERE", []),
        # What is not known to hold
        ("if a.cap:\n  HERE", ["if `a.cap`"]),
        ("if a.cap:\n  pass\nelse:\n  HERE", ["unless `a.cap`"]),
        ("if a.x:\n  HERE\nelif a.y:\n  HERE\nelse:\n  HERE", ["if `a.x`", "if `a.y`", "unless `a.y`"]),
        ("if a.x:\n  HERE\nelif 1:\n  HERE\nelse:\n  HERE", ["if `a.x`", "unless `a.x`"]),
        ("if a.x:\n  if b:\n    HERE", ["if `a.x` and if `b`"]),
        ("import socket\nif socket.gethostname() == 'other':\n  HERE", ["if `socket.gethostname() == 'other'`"]),
        ("import torch\nif torch.cuda.is_available() and a.cap:\n  HERE", ["if `torch.cuda.is_available() and a.cap`"]),
        (TF + "if len(gpus) > 1:\n  HERE", ["if `len(gpus) > 1`"]),
        ("try:\n  import apex\nexcept ImportError:\n  HERE", ["in except `ImportError`"]),
        ("try:\n  f()\nexcept:\n  HERE", ["in except"]),
        ("try:\n  f()\nexcept* E:\n  HERE", ["in except `E`"]),
        ("while waiting():\n  HERE", ["while `waiting()`"]),
        ("match x:\n  case 'cap':\n    HERE", ["in case `'cap'`"]),
        ("f(a if b else c.set_limit(1))\nif b:\n  HERE", ["if `b`"]),
        ("def f():\n  if args.free:\n    return\n  HERE", ["unless `args.free`"]),
        ("def f():\n  if args.free:\n    return 1\n  for x in y:\n    HERE", ["unless `args.free`"]),
        ("def f():\n  for x in y:\n    if x:\n      return\n  HERE", ["unless `x`"]),
        ("def f():\n  with x:\n    if y:\n      return\n  HERE", ["unless `y`"]),
        ("def f():\n  try:\n    g()\n  except E:\n    return\n  HERE", ["unless `E`"]),
        ("def f():\n  try:\n    return g()\n  except E:\n    pass\n  HERE", ["behind `return g()`"]),
        ("def f():\n  match x:\n    case 1:\n      return\n  HERE", ["behind `1`"]),
        ("for x in y:\n  if x:\n    continue\n  HERE\nHERE", ["unless `x`", ""]),
        ("for x in y:\n  if a:\n    continue\n  for z in x:\n    if b:\n      break\n  HERE\nHERE", ["unless `a`", ""]),
        ("while True:\n  if a:\n    break\nHERE", [""]),
        ("def f():\n  while True:\n    return\n  HERE", ["behind `return`"]),
        ("if a:\n  raise E\nHERE", [""]),
        ("try:\n  if a:\n    raise E\n  HERE\nexcept E:\n  pass\nHERE", ["unless `a`", ""]),
        ("if a:\n  raise E\nelse:\n  exit()\nHERE", []),
        ("def f():\n  HERE\nif a.cap:\n  f()", ["if `a.cap`"]),
        ("def f():\n  HERE\ndef g():\n  f()\nif a.cap:\n  g()", ["if `a.cap`"]),
        ("def f():\n  HERE\nif 0:\n  f()", []),
        ("def f():\n  HERE\ndef g():\n  f()\nif 0:\n  g()", []),
        ("def f():\n  HERE\n  f()", [""]),
        ("if a:\n  def f():\n    HERE\nf()", ["if `a`"]),
    ],
)  # fmt: skip
def test_a_condition_is_followed_dropped_or_quoted(source: str, expected: list[str]) -> None:
    assert conditions(source) == expected


CALL = "torch.cuda.set_per_process_memory_fraction(0.3)"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"{CALL} if a.cap else None", ["if `a.cap`"]),
        (f"None if a.cap else {CALL}", ["unless `a.cap`"]),
        (f"a.cap and {CALL}", ["if `a.cap`"]),
        (f"a.free or {CALL}", ["unless `a.free`"]),
        (f"torch.cuda.is_available() and {CALL}", [""]),
        (f"torch.cuda.is_available() or {CALL}", []),
        (f"[{CALL} for x in y]", [""]),
        (f"[{CALL} for x in y if x.cap]", ["if `x.cap`"]),
        (f"[{CALL} for x in y if 0]", []),
        (f"f = lambda: {CALL}", [""]),
    ],
)
def test_a_condition_within_an_expression(source: str, expected: list[str]) -> None:
    assert [one.condition for one in read(source, TORCH).candidates] == expected


@pytest.mark.parametrize(
    ("test", "environ", "expected"),
    [
        ("os.environ.get('SHARED')", {}, []),
        ("os.environ.get('SHARED')", {"SHARED": "1"}, [""]),
        ("os.environ.get('SHARED', '1') == '1'", {}, [""]),
        ("os.environ.get('SHARED', '0') == '1'", {}, []),
        ("os.getenv('SHARED', '').lower() in ('1', 'true')", {"SHARED": "True"}, [""]),
        ("bool(int(os.environ.get('SHARED', 0)))", {}, []),
        ("'SHARED' in os.environ", {}, []),
        ("'SHARED' in os.environ", {"SHARED": ""}, [""]),
        ("'SHARED' not in os.environ", {}, [""]),
        ("os.environ.get('SHARED') is None", {}, [""]),
        ("os.environ.get('A') or os.environ.get('B')", {"B": "1"}, [""]),
        ("int(os.environ['LOCAL_RANK']) == 0", {"LOCAL_RANK": "0"}, [""]),
        ("int(os.environ['LOCAL_RANK']) == 0", {"LOCAL_RANK": "1"}, []),
        ("int(os.environ['LOCAL_RANK']) == 0", {}, ["if `int(os.environ['LOCAL_RANK']) == 0`"]),
        ("os.environ.get('SET')", {}, ["if `os.environ.get('SET')`"]),
        ("os.environ.get(name)", {}, ["if `os.environ.get(name)`"]),
    ],
)
def test_the_environment_of_the_process_decides(test: str, environ: dict[str, str], expected: list[str]) -> None:
    assert conditions(f"import os\nos.environ['SET'] = f()\nif {test}:\n  HERE", **environ) == expected


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
