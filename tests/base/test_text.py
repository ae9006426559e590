"""The gate for foreign text: nothing a terminal acts on, and no known secret, gets through it."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuwatch.base.text import ELLIPSIS, LIMIT, MARK, clean, fit, format_command_line, mask, redact, shorten
from tests.support.terminal import Tmux

SECRET = "s3cr3tValue"

HOSTILE = [
    *("[/x]", "[/", "[b", "[red]hi", "[@click=app.quit]x", "[$x]y", "\x1b]2;PWN\x1b\\", "\x1b]52;c;UFdO\x07"),
    "\x9b31m",
    *("\x9d2;PWN\x9c", "a\x00b", "a\tb\rc\nd", "\x7f", "\u202eevil", "\u2066a\u2069", "\u2028\u2029", "ro\u200dot"),
    *("ro\ufe0fot", "a\u200bb\ufeff", "a\u3164b", "\ue000\uffff\U000e0041", "\udc80", "日本", "a" + "\u0301" * 5000),
    *("\u1100" + "\u1161" * 5000, "\u0301", "x" * 1_500_000),
]

any_text = st.text(st.characters(exclude_categories=()))
dangerous = st.sampled_from(
    "\x1b\x00\x07\x9b\u202e\u200d\ufe0f\u0301\u0903\u1161\u3164\udc80\xa0\u2028👍🏽❤日é[]/=: '\"\\-"
)
foreign = st.one_of(any_text, st.text(dangerous))


def assert_safe(text: str) -> None:
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        assert char.isprintable()
        assert category not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
        assert category != "Zs" or char == " "
        assert not 0xFE00 <= ord(char) <= 0xFE0F
        marks = marks + 1 if category[0] == "M" or 0x1160 <= ord(char) <= 0x11FF else 0
        assert marks <= 2
    text.encode()


@given(foreign, st.integers(1, 60))
def test_clean_text_is_safe_bounded_and_stays_as_it_is(raw: str, limit: int) -> None:
    cleaned = clean(raw, limit)
    assert_safe(cleaned)
    assert len(cleaned) <= limit
    assert clean(cleaned, limit) == cleaned


@given(foreign, st.integers(1, 60))
def test_of_a_long_text_both_ends_are_kept(raw: str, limit: int) -> None:
    short = shorten(raw, limit)
    assert_safe(short)
    assert len(short) <= limit
    if len(raw) <= limit:
        assert short == clean(raw)
    else:
        assert ELLIPSIS in short


@given(st.one_of(st.binary(), foreign.map(lambda text: text.encode("utf-8", "surrogatepass"))), st.integers(1, 60))
def test_clean_takes_any_bytes(raw: bytes, limit: int) -> None:
    cleaned = clean(raw, limit)
    assert_safe(cleaned)
    assert len(cleaned) <= limit
    assert cleaned == clean(raw.decode("utf-8", "replace"), limit)


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_comes_out_safe(raw: str) -> None:
    for cleaned in (clean(raw), format_command_line([raw]), format_command_line(["python", raw, "--token", raw])):
        assert_safe(cleaned)
        assert 0 < len(cleaned) <= LIMIT


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("", ""),
        ("python train.py", "python train.py"),
        ("a\x1b[31mb", f"a{MARK}[31mb"),
        ("a\nb\tc", f"a{MARK}b{MARK}c"),
        ("a\xa0b\u3000c", "a b c"),
        ("\udc80", MARK),
        (b"\xff\xfea", f"{MARK}{MARK}a"),
        ("ro\u200dot", f"ro{MARK}ot"),
        ("ro\ufe0fot", f"ro{MARK}ot"),
        ("\u2764\ufe0f\u200d\U0001f525!", "\u2764\U0001f525!"),
        ("\U0001f44d\U0001f3fd!", "\U0001f44d!"),
        ("x\U0001f3fd", f"x{MARK}"),
        ("\U0001f469\U0001f3fd\u200d\U0001f680", "\U0001f469\U0001f680"),
        ("run-\U0001f1e9\U0001f1ea", "run-DE"),
        ("\u0915\u093f\u094d", f"\u0915{MARK}\u094d"),
        ("\u2630", MARK),
        ("e\u0301\u0302\u0303\u0304x\u0301", "e\u0301\u0302x\u0301"),
        ("\u0301a", f"{MARK}a"),
        ("한국어 日本", "한국어 日本"),
        ("a\u115fb", f"a{MARK}b"),
    ],
)
def test_clean_shows_what_was_hidden(raw: str | bytes, expected: str) -> None:
    assert clean(raw) == expected


MEASURE = """
import json, os, re, sys, termios, tty
terminal = os.open("/dev/tty", os.O_RDWR)
tty.setraw(terminal)
cells = []
for text in json.load(open(sys.argv[1])):
    os.write(terminal, b"\\r\\x1b[2K" + text.encode() + b"\\x1b[6n")
    answer = b""
    while not answer.endswith(b"R"):
        answer += os.read(terminal, 100)
    cells.append(int(answer[:-1].rpartition(b";")[2]) - 1)
with open(sys.argv[2], "w") as file:
    json.dump(cells, file)
"""
"""Prints each text of a file where a terminal draws it, and asks the terminal where its cursor is then."""
EMOJI = [
    *("\U0001f44d\U0001f3fd", "\U0001f469\U0001f3fd\u200d\U0001f680", "\u261d\U0001f3ff", "x\U0001f3fdy", "\U0001f3fd"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f441\ufe0f\u200d\U0001f5e8\ufe0f", "\u2764\ufe0f"),
    "\u2600\ufe0e",
    *("\U0001f1e9\U0001f1ea", "\U0001f1e9", "a\U0001f1ea", "1\ufe0f\u20e3", "#\u20e3"),
    "\U0001f3f4\U000e0067\U000e0062\U000e007f",
    *("\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u093f\u0932", "\u0ba8\u0bbf", "\u0e01\u0e33", "\u1112\u1161\u11ab"),
    *("e\u0301", "\u2630", "\u268a", "\u3248", "\U0001d300", "\u302e"),
]


def test_tmux_draws_clean_text_in_as_many_cells_as_it_is_laid_out_with(tmux: Tmux, tmp_path: Path) -> None:
    texts, answers = [clean(text) for text in EMOJI], tmp_path / "answers"
    (tmp_path / "texts").write_text(json.dumps(texts))
    (tmp_path / "measure.py").write_text(MEASURE)
    tmux.start([sys.executable, *(str(tmp_path / name) for name in ("measure.py", "texts", "answers"))], {})
    tmux.wait_for("exit code 0")
    drawn = dict(zip(texts, json.loads(answers.read_text()), strict=True))
    assert drawn == {text: cell_len(text) for text in texts}


def test_a_cut_is_marked() -> None:
    assert clean("abcdef", 4) == "abc…"
    assert clean(b"abcdef", 4) == "abc…"
    assert clean("日本語".encode(), 3) == "日本語"
    assert clean("日本語!".encode(), 3) == "日本…"
    assert clean("abc", 1) == ELLIPSIS
    assert [shorten("abcdef", limit) for limit in (6, 5, 4, 3, 2, 1)] == ["abcdef", "ab…ef", "a…ef", "a…f", "…f", "…"]


# ---------------------------------------------------------------------------------------------------------------
# fit


@given(foreign, st.integers(-2, 40), st.sampled_from(["…", "~", "...", "", "省"]))
def test_fit_fills_exactly_its_cells(raw: str, cells: int, ellipsis: str) -> None:
    assert cell_len(fit(clean(raw), cells, ellipsis=ellipsis)) == max(cells, 0)


@pytest.mark.parametrize(
    ("text", "cells", "expected"),
    [
        ("abc", 5, "abc  "),
        ("abcdef", 4, "abc…"),
        ("abc", 1, "a"),
        ("abc", 0, ""),
        ("日本", 5, "日本 "),
        ("日本語", 4, "日 …"),
        ("日本語", 5, "日本…"),
        ("日本語", 1, " "),
    ],
)
def test_fit(text: str, cells: int, expected: str) -> None:
    assert fit(text, cells) == expected


def test_fit_takes_another_ellipsis() -> None:
    assert fit("abcdef", 4, ellipsis="~") == "abc~"
    assert fit("abcdef", 4, ellipsis="省") == "ab省"


# ---------------------------------------------------------------------------------------------------------------
# Secrets


# Lines of `{"argv", "shown", "hidden"}`: command lines, titles and paths, what was shown of each when the file was
# made, and the words in it that were masked. A line is added where a new kind of secret is known; none is taken away.
FROZEN = [json.loads(line) for line in Path(__file__).with_name("secrets.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("line", FROZEN, ids=lambda line: " ".join(line["argv"])[:60])
def test_what_was_masked_once_stays_masked_and_nothing_else_is(line: dict[str, Any]) -> None:
    shown = format_command_line(line["argv"])
    assert not [word for word in line["hidden"] if word in shown]
    assert line["hidden"] or shown == line["shown"]


@pytest.mark.parametrize("length", [10, 500, 1000, 1100])
def test_a_secret_that_is_cut_is_not_shown_behind_one_that_is_masked(length: int) -> None:
    """A masked secret makes the line shorter, so that the end of what was searched moves into what is shown."""
    for rest in range(1, 40):
        argv = ["x", "--token", "A" * length, "B" * max(1, 1124 - 13 - length - rest), "hf_" + "aBcD" * 8]
        assert "hf_" not in format_command_line(argv, 100)


def test_a_shape_is_known_wherever_it_stands() -> None:
    for token in ("hf_" + "aBcD" * 8, "npm_" + "a1" * 18, "12345678:AA" + "x-_" * 11):
        for where in ("{}", "x={}", "a:{},b", "echo {} | sh", "/v1/{}/x", '"{}"'):
            assert token[8:] not in redact([where.format(token)])[0]


names = st.sampled_from(
    ["token", "api-key", "API_KEY", "hfToken", "db.password", "PASSWD", "secret", "aws_secret_access_key", "auth"]
)
forms = st.sampled_from(
    [
        ["--{name}", "{value}"],
        ["--{name}={value}"],
        ["{name}={value}"],
        ["sh", "-c", "{name}={value} python"],
        ["sh", "-c", "python --{name} {value} x"],
        ["sh", "-c", "curl -H '{name}: {value}' x"],
        ['{{"{name}": "{value}"}}'],
        ["python", "-c", 'os.environ["{name}"] = "{value}"'],
        ["python", "-c", "os.environ.setdefault('{name}', r'{value}')"],
        ["curl", "-u", "{name}:{value}"],
        ["x", "https://h/hooks/{value}"],
        ["https://{value}@host", "--{name}={value}"],
    ]
)
around = st.lists(st.text(max_size=8).map(lambda t: t + "."), max_size=3)


@given(names, forms, around, around)
def test_a_named_secret_never_survives(name: str, form: list[str], head: list[str], tail: list[str]) -> None:
    argv = [*head, *(part.format(name=name, value=SECRET) for part in form), *tail]
    assert SECRET not in format_command_line(argv)


@given(st.lists(st.one_of(foreign, names, names.map("--{}".format)), max_size=6), st.integers(1, 80))
def test_any_command_line_comes_out_safe(argv: list[str], limit: int) -> None:
    line = format_command_line(argv, limit)
    assert_safe(line)
    assert len(line) <= limit
    assert len(redact(argv)) == len(argv)


hostile_parts = st.sampled_from(
    [*"\"'\\:=,;&?/-[]( \n\t", "token", "curl -u ", "://", "/hooks/", '"""', "wandb login ", "eyJ", "hf_", "sk-", "1:A"]
)


@pytest.mark.uncounted
@settings(max_examples=20)
@given(st.lists(hostile_parts, min_size=1, max_size=4), st.lists(hostile_parts, max_size=2))
def test_of_a_line_made_to_be_slow_only_the_beginning_is_read(repeated: list[str], head: list[str]) -> None:
    line = "token curl wandb " + "".join(head) + "".join(repeated) * 6000
    shown = format_command_line(["sh", "-c", line])
    assert_safe(shown)
    assert shown == format_command_line(["sh", "-c", line[:6000]])


@pytest.mark.uncounted
@given(st.integers(0, 6000), names)
def test_a_secret_at_the_cut_does_not_survive(padding: int, name: str) -> None:
    url = f"https://user:{SECRET}@host"
    for argv in (["x" * padding, url, f"--{name}={SECRET}"], ["x" * padding + " " + url + " y" * 3000]):
        assert SECRET[:4] not in format_command_line(argv)
    assert SECRET[:4] not in mask("x" * padding + f" --{name} {SECRET}", 40 + padding % 40)


title_parts = st.sampled_from(
    [
        *("--token", "--token=", "token:", "secret:", "Bearer", "basic", "Authorization:", "curl", "-u", "wandb"),
        *("login", "--pwd", "=", '"', "'", "it's", SECRET, f"ada:{SECRET}", f"https://{SECRET}@h", f"?sig={SECRET}"),
    ]
)


@given(st.lists(title_parts, min_size=2, max_size=7).map(" ".join))
def test_a_title_is_searched_as_words_and_as_a_text(title: str) -> None:
    (shown,) = redact([title])
    for other in (" ".join(redact([*title.split(" "), "-"])), redact([title, "-"])[0]):
        assert shown.count(SECRET) <= other.count(SECRET)


# ---------------------------------------------------------------------------------------------------------------
# Command lines


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], ""),
        (["python", "x.py"], "python x.py"),
        (["python", "-c", "print(1); x"], "python -c 'print(1); x'"),
        (["echo", "it's $5"], 'echo "it\'s \\$5"'),
        (["x", "", "y"], "x '' y"),
        (["title it's set", "", "", ""], "title it's set"),
        (["a\x1b]2;x\x07"], f"a{MARK}]2;x{MARK}"),
        (["--token", "abc"], "--token ***"),
    ],
)
def test_a_command_line_reads_like_one(argv: list[str], expected: str) -> None:
    assert format_command_line(argv) == expected


def test_a_long_command_line_is_cut() -> None:
    line = format_command_line(["python", "x" * 1_500_000])
    assert len(line) == LIMIT
    assert line.startswith("python xxx")
    assert line.endswith("x…")
    assert format_command_line(["a"] * 500_000, 10) == "a a a a a…"
    assert format_command_line(["ab", "cd"], 4) == "ab …"


def test_many_harmless_names_are_read_once_each() -> None:
    assert redact(["tokenizer=" * 5, "token=" * 3, "token==" * 3 + " "]) == ["tokenizer=" * 5, "token=***", "token=***"]
