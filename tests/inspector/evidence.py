"""What the tests of evidence share: a script, and a scan that shows what it was given."""

from __future__ import annotations

from gpuwatch.declared.facts import Facts, ScriptContents, Variables, format_path

SOURCE = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.5)\n"


def seen(name: str, source: bytes, variables: Variables = None) -> ScriptContents:
    """A scan that shows what it was given."""
    imports = ("theano",) if b"import theano" in source else ()
    return ScriptContents(error=f"{name}: {source.decode()}", imports=imports)


def script_of(facts: Facts) -> tuple[str, str]:
    """The name and the text of a script that was scanned by `seen`."""
    assert facts.script is not None
    assert isinstance(facts.script.contents, ScriptContents)
    name, _, text = facts.script.contents.error.partition(": ")
    assert format_path(name) == facts.script.path
    return facts.script.path, text
