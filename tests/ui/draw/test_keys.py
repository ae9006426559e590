"""Keys have the names by which Textual knows them, and are shown as printed on a keyboard."""

from __future__ import annotations

import string

from textual.keys import _character_to_key

from gpuwatch.ui.draw.keys import key_names, textual_key

PRINTED = set(string.printable) - set(string.whitespace)


def test_each_character_has_textuals_name_and_is_shown_as_itself() -> None:
    assert {char: textual_key(char) for char in PRINTED} == {char: _character_to_key(char) for char in PRINTED}
    assert {char: key_names(textual_key(char)) for char in PRINTED} == {char: char for char in PRINTED}


def test_named_keys_are_shown_as_on_a_keyboard() -> None:
    assert [textual_key(key) for key in ("ctrl+r", "f9", "enter")] == ["ctrl+r", "f9", "enter"]
    assert key_names("K,f9,pageup,ctrl+r,shift+tab,escape") == "K F9 PgUp ^r ⇧Tab Esc"
