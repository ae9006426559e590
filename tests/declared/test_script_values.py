"""Variables that a source sets: literals are worked out, constants are followed, all else is known at run time."""

from __future__ import annotations

import ast
import warnings

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.script_values import UNKNOWN, ScriptValues, SymbolTable
from tests.declared.scanning import LIKELY, only, read, setting, values
from tests.declared.tables import Case, cases


@cases("declared/script_environ")
def test_variables_that_a_source_sets(case: Case) -> None:
    """`default` is whether a variable is set only where it is not."""
    found = read(case["source"], "import os\n")
    assert values(found) == [tuple(pair) for pair in case["sets"]]
    if "default" in case:
        assert [(one.default, one.confidence) for _, one in found.settings] == [(case["default"], LIKELY)]


NUMBERS = """
FRACTION = 0.25
TWICE = 0.2
TWICE = 0.3
RECURSIVE = RECURSIVE + 1
CHANGED = [0.1]
CHANGED.append(0.2)
for LOOP in range(3): pass
def limit(PARAMETER):
    c.gpu_options.per_process_gpu_memory_fraction = {}
limit(0.1)
"""


@cases("declared/script_values")
def test_literals_are_worked_out_and_nothing_else_is(case: Case) -> None:
    """`again` binds the name A once more."""
    if "number" in case:
        candidate = only(NUMBERS.replace("{}", case["number"]))
        assert (candidate.value, candidate.dynamic) == (case["value"], case["value"] is None)
    else:
        names = "GPU = 1\nGPUS = ['0', '2']\nA = '0'\n"
        assert setting(f"{names}os.environ['TF_A'] = {case['text']}\n{case.get('again', '')}").value == case["value"]


def test_a_text_of_more_than_4096_characters_is_not_followed() -> None:
    for text in (f"'{'x' * 4097}'", f"','.join(['{'x' * 4000}', '{'y' * 4000}'])"):
        assert setting(f"os.environ['TF_A'] = {text}").value is None


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


ATOMS = "-1 0 1 2 7 0.5 1e3 1e400 True False None '' '0' '1,2' 'cuda' b'1' () [] {1,1} {'0','1'} N '1_0'"
FORMS = """
    {} + {} | {} - {} | {} * {} | {} / {} | {} // {} | {} % {} | {} ** {} | {} << {} | {} >> {} | {} ^ {} | not {} | -{}
    | {} == {} | {} != {} | {} < {} | {} >= {} | {} is {} | {} is not {} | {} in {} | {} not in {} | {} and {}
    | {} or {} | {} < {} < {} | {} if {} else {} | [{}, {}] | ({}, {}) | {}[{}] | {}[{}:{}] | {}[{}:] | {}.join({})
    | {}.lower() | ','.join(map(str, {})) | str({}) | int({}) | float({}) | bool({}) | len({}) | range({})
    | range({}, {}) | max({})
"""
EXPRESSIONS = st.recursive(
    st.sampled_from(ATOMS.split()),
    lambda parts: st.sampled_from(FORMS.split("|")).flatmap(
        lambda form: st.tuples(*[parts] * form.count("{}")).map(lambda inner: f"({form.strip().format(*inner)})")
    ),
    max_leaves=6,
)


@given(EXPRESSIONS)
def test_what_is_known_is_what_python_computes(source: str) -> None:
    """Of what raises in Python any value may be known: the script has ended there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Python finds odd: `1 is 1`
        tree = ast.parse(f"N = 4\n{source}")
        statement = tree.body[1]
        assert isinstance(statement, ast.Expr)
        value = ScriptValues(SymbolTable(tree), ()).value(statement.value)
        if value is UNKNOWN:
            return
        try:
            expected = eval(source, {"N": 4})
        except Exception:  # noqa: BLE001 - a type, a number, an index that does not fit
            return
    assert repr(value) == repr(tuple(expected) if isinstance(expected, list | range) else expected)
