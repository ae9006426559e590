"""`gpuwatch kill`, the command without a program around it: what it says of processes that only a snapshot shows."""

from __future__ import annotations

from gpuwatch.actions.steps import Listed
from gpuwatch.model import Unlisted
from gpuwatch.output.killing import Line, line_of
from tests.builders import GIB, gpu, holding, process, snapshot, uid


def test_what_is_known_of_one_that_nvml_does_not_list_stands_in_its_row() -> None:
    hidden = Unlisted(process=process(8, "ada"), gpus=(gpu(1).key, gpu(3).key))
    listed = gpu(0, holdings=[holding(7, 2.0, sm=40)])
    shown = snapshot([listed, gpu(1), gpu(2), gpu(3)], [process(7, "ada")], unlisted=(hidden,))
    assert line_of(Listed(7, "a", 0), shown, uid("ada")) == Line(7, "ada", (0,), 2 * GIB, 40.0, "a")
    assert line_of(Listed(8, "b", 0), shown, uid("ada")) == Line(8, "ada", command="b", open=(1, 3))
    assert line_of(Listed(9, "c", 0), shown, uid("ada")) == Line(9, "ada", command="c")
