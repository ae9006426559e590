"""Literals are worked out, constants are followed, and all else is only known at run time."""

from __future__ import annotations

import pytest

from gpuwatch.units import GIB
from tests.support.scanning import only, read, setting, values


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.4", 0.4),
        ("1_000", 1000),
        ("+0.4", 0.4),
        ("4 * 1024 ** 3", 4 * GIB),
        ("1 << 30", GIB),
        ("2**31 >> 1", GIB),
        ("10 // 4 + 7 % 4 - 1 / 2", 4.5),
        ("FRACTION", 0.25),
        ("FRACTION * 2", 0.5),
        ("int('3')", 3),
        ("int(3.7)", 3),
        ("float('0.5')", 0.5),
        ("args.fraction", None),
        ("float(args.fraction)", None),
        ("float('half')", None),
        ("config['fraction']", None),
        ("TWICE", None),
        ("PARAMETER", None),
        ("LOOP", None),
        ("CHANGED[0]", None),
        ("RECURSIVE", None),
        ("1 / 0", None),
        ("2 ** -1.5 * (-8) ** 0.5", None),
        ("9 ** 9 ** 9", None),
        ("10 ** 19", None),
        ("1e18 * 10", None),
        ("1e999", None),
        ("1 << 1000", None),
        ("1 << -1", None),
        ("~1", None),
        ("1j", None),
        ("round(0.4, 1)", None),
        ("float('nan')", None),
        ("int('9' * 5000)", None),
        ("0.5 if args.small else 0.7", None),
        ("(lambda: 0.4)()", None),
        ("-" * 60 + "1", None),
    ],
)
def test_literals_are_worked_out_and_nothing_else_is(expression: str, value: float | None) -> None:
    source = f"""
FRACTION = 0.25
TWICE = 0.2
TWICE = 0.3
RECURSIVE = RECURSIVE + 1
CHANGED = [0.1]
CHANGED.append(0.2)
for LOOP in range(3): pass
def limit(PARAMETER):
    c.gpu_options.per_process_gpu_memory_fraction = {expression}
limit(0.1)
"""
    candidate = only(source)
    assert (candidate.value, candidate.dynamic) == (value, value is None)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("'2' ',3'", "2,3"),
        ("'2' + ',3'", "2,3"),
        ("f'{2},{3}'", "2,3"),
        ("f'{GPU}'", "1"),
        ("f'{GPU:03}'", None),
        ("f'{GPU!r}'", None),
        ("f'{other}'", None),
        ("str(GPU)", "1"),
        ("str(0.5)", "0.5"),
        ("str(None)", None),
        ("','.join(['2', '3'])", "2,3"),
        ("','.join(('2', '3'))", "2,3"),
        ("','.join(GPUS)", "0,2"),
        ("','.join(map(str, [2, 3]))", "2,3"),
        ("','.join(str(i) for i in [2, 3])", None),
        ("','.join(str(i) for i in [2, 3] if i)", None),
        ("','.join([2, 3])", None),
        ("','.join(ids)", None),
        ("','.join([['2']])", None),
        ("sep.join(['2', '3'])", None),
        ("'0,' * 3", None),
        ("'%d' % 2", None),
        ("'{}'.format(2)", None),
        ("'x' * 10**9", None),
        ("'" + "x" * 4097 + "'", None),
        ("','.join(['" + "x" * 4000 + "', '" + "y" * 4000 + "'])", None),
        ("not 1", None),
        ("-'a'", None),
        ("'a' - 1", None),
        ("b'1'", None),
    ],
)
def test_texts_are_put_together_from_literals(expression: str, value: str | None) -> None:
    assert setting(f"GPU = 1\nGPUS = ['0', '2']\nos.environ['TF_A'] = {expression}").value == value


def test_a_name_is_known_only_where_the_whole_source_binds_it_once() -> None:
    found = read(
        """
        import os
        A = "module"
        def outer():
            B = "function"
            os.environ["TF_1"] = A
            os.environ["TF_2"] = B
            def inner():
                os.environ["TF_3"] = B
            inner()
        class Settings:
            C = "class"
            D = "class"
            os.environ["TF_4"] = C
            def method(self, D):
                os.environ["TF_5"] = D
        def parameter(E):
            os.environ["TF_6"] = E
        outer(); parameter(A); Settings().method()
        os.environ["TF_7"] = D
        """
    )
    assert values(found) == [
        ("TF_1", "module"),
        ("TF_2", "function"),
        ("TF_3", "function"),
        ("TF_4", "class"),
        ("TF_5", None),
        ("TF_6", None),
        ("TF_7", None),
    ]


@pytest.mark.parametrize(
    "again",
    [
        "A += '1'",
        "del A",
        "for A in x: pass",
        "for A, b in x: pass",
        "with x as A: pass",
        "try: pass\nexcept E as A: pass",
        "import A",
        "from b import A",
        "from b import *",
        "def A(): pass",
        "class A: pass",
        "A, b = x",
        "[A, *b] = x",
        "A, b = 1, 2",
        "(A := '3')",
        "A: str = '4'",
        "match x:\n  case {'k': 1, **A}: pass",
        "match x:\n  case [1, *A]: pass",
        "match x:\n  case A: pass",
        "lambda A: 1",
        "[1 for A in x]",
        "def f():\n  global A\n  A = '5'",
        "def f(b):\n  def g():\n    global A\n    A = '6'",
    ],
)
def test_a_name_that_is_bound_again_in_any_way_is_no_constant(again: str) -> None:
    assert setting("A = '0'\nos.environ['TF_A'] = A").value == "0"
    assert setting(f"A = '0'\nos.environ['TF_A'] = A\n{again}").value is None


def test_a_name_that_is_bound_to_the_same_thing_again_is_one() -> None:
    assert setting("A = '0'\nA = '0'\nos.environ['TF_A'] = A").value == "0"
