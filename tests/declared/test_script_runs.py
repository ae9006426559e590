"""What of a source runs, what may, and what never does."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuwatch.declared import script
from gpuwatch.model import Confidence
from tests.support.scanning import CERTAIN, LIKELY, LIMIT, TF, read


def under(template: str) -> list[Confidence]:
    """Read a source with a candidate in the place of HERE, indented as it stands."""
    return [candidate.confidence for candidate in read(template.replace("HERE", LIMIT)).candidates]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("HERE", [CERTAIN]),
        ("if __name__ == '__main__':\n  HERE", [CERTAIN]),
        ("if __name__ != '__main__':\n  HERE", []),
        ("if __name__ == '__main__':\n  pass\nelse:\n  HERE", []),
        ("if False:\n  HERE", []),
        ("if 0:\n  HERE\nelse:\n  HERE", [CERTAIN]),
        ("if not True:\n  HERE", []),
        ("DEBUG = False\nif DEBUG:\n  HERE", []),
        ("while 0:\n  HERE", []),
        ("while True:\n  HERE", [CERTAIN]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  HERE", []),
        ("if args.small:\n  HERE", [LIKELY]),
        ("if args.small:\n  pass\nelse:\n  HERE", [LIKELY]),
        ("if args.small:\n  HERE\nelif 1:\n  HERE\nelse:\n  HERE", [LIKELY, LIKELY]),
        ("if 0:\n  HERE\nelif args.small:\n  HERE", [LIKELY]),
        ("import torch\nif torch.cuda.is_available():\n  HERE\nelse:\n  HERE", [CERTAIN, LIKELY]),
        (TF + "if len(gpus) > 0:\n  HERE", [CERTAIN]),
        (TF + "if len(gpus) > 1:\n  HERE", [LIKELY]),
        ("for i in x:\n  HERE\nelse:\n  HERE", [CERTAIN, CERTAIN]),
        ("with x:\n  HERE", [CERTAIN]),
        (
            "async def f():\n  async with x:\n    HERE\n  async for y in z:\n    HERE\nasyncio.run(f())",
            [CERTAIN, CERTAIN],
        ),
        ("try:\n  HERE\nexcept E:\n  HERE\nelse:\n  HERE\nfinally:\n  HERE", [CERTAIN, LIKELY, CERTAIN, CERTAIN]),
        ("try:\n  HERE\nexcept* E:\n  HERE", [CERTAIN, LIKELY]),
        ("match x:\n  case 1:\n    HERE", [LIKELY]),
        ("import sys\nsys.exit(main())\nHERE", []),
        ("exit()\nHERE", []),
        ("raise SystemExit\nHERE", []),
        ("if a:\n  raise E\nelse:\n  exit()\nHERE", []),
        ("if a:\n  raise E\nHERE", [CERTAIN]),
        ("try:\n  raise E\nexcept E:\n  pass\nHERE", [CERTAIN]),
        ("try:\n  raise E\nfinally:\n  pass\nHERE", []),
        ("for i in x:\n  break\n  HERE", []),
        ("for i in x:\n  continue\n  HERE\nHERE", [CERTAIN]),
        ("def f():\n  HERE\nf()", [CERTAIN]),
        ("def f():\n  return\n  HERE\nf()", []),
        ("def f():\n  HERE", [LIKELY]),
        ("def f():\n  HERE\nif a:\n  f()", [LIKELY]),
        ("def f():\n  HERE\nif a:\n  f()\nf()", [CERTAIN]),
        ("def f():\n  HERE\ndef g():\n  f()\ng()", [CERTAIN]),
        ("def f():\n  HERE\n  f()\nf()", [CERTAIN]),
        ("def f():\n  HERE\nspawn(f, nprocs=2)", [LIKELY]),
        ("if a:\n  def f():\n    HERE\nelse:\n  def f():\n    pass\nf()", [LIKELY]),
        ("@app.command()\ndef f():\n  HERE", [LIKELY]),
        ("class A:\n  HERE\n  def f(self):\n    HERE", [CERTAIN, LIKELY]),
        ("if 0:\n  def f():\n    HERE", []),
        ("def f(a=g(x)):\n  pass\nHERE", [CERTAIN]),
        ("'''\nHERE\n'''\n# HERE", []),
    ],
)
def test_how_sure_a_candidate_is_depends_on_whether_it_runs(source: str, expected: list[Confidence]) -> None:
    assert under(source) == expected


def test_a_chain_of_calls_is_followed_only_so_far() -> None:
    source = "".join(f"def f{n}():\n  f{n + 1}()\n" for n in range(40)) + "def f40():\n  HERE\nf0()"
    assert under(source) == [LIKELY]


def test_hundreds_of_branches_are_followed_one_after_the_other() -> None:
    source = "if a == 0:\n  pass\n" + "".join(f"elif a == {n}:\n  HERE\n" for n in range(1, 800))
    assert under(source) == [LIKELY] * script.MOST


def test_variables_of_functions_that_nothing_calls_are_not_set() -> None:
    found = read(
        """
        import os
        def called():
            os.environ["TF_1"] = "1"
        def by_reference():
            os.environ["TF_2"] = "1"
        def never():
            os.environ["TF_3"] = "1"
            only_from_there()
        def only_from_there():
            os.environ["TF_4"] = "1"
        class Trainer:
            def __init__(self):
                os.environ["TF_5"] = "1"
            def fit(self):
                os.environ["TF_6"] = "1"
            def never_either(self):
                os.environ["TF_7"] = "1"
        if __name__ == "__main__":
            called()
            Pool(2).map(by_reference, [])
            Trainer().fit()
        """
    )
    assert [(name, one.confidence) for name, one in found.settings] == [
        ("TF_1", CERTAIN),
        ("TF_2", LIKELY),
        ("TF_5", LIKELY),
        ("TF_6", LIKELY),
    ]


def test_chains_of_functions_that_are_defined_backwards_are_followed_to_their_end() -> None:
    names = [f"f{n}" for n in range(600)]
    calls = pairwise(names)
    chain = "".join(f"def {name}():\n  run({called})\n" for name, called in reversed([*calls]))
    found = read(f"def f599():\n  {LIMIT}\n{chain}run(f0)")
    assert [(candidate.confidence, candidate.uncalled) for candidate in found.candidates] == [(LIKELY, False)]


def test_a_candidate_in_a_function_that_nothing_calls_is_told_apart() -> None:
    found = read(f"def f():\n  {LIMIT}\ndef g():\n  {LIMIT}\ng()")
    assert [(candidate.confidence, candidate.uncalled) for candidate in found.candidates] == [
        (LIKELY, True),
        (CERTAIN, False),
    ]


def test_a_choice_of_gpus_in_a_function_that_nothing_calls_is_none() -> None:
    assert read("def f():\n  tf.config.set_visible_devices([], 'GPU')", TF).selections == ()


def test_a_source_that_declares_thousands_of_things_is_cut_short_and_says_so() -> None:
    found = read("".join(f"os.environ['TF_{n}'] = '1'\n" for n in range(20 * script.MOST)), "import os\n")
    assert len(found.settings) == script.MOST
    assert found.settings[0][0] == "TF_0"
    assert "declares too much" in found.hints[0].words
