"""Cleaning of foreign text, masking of secrets, and text of a fixed width.

User names, host names, GPU names, container names and error texts pass `clean` once, where they enter; command lines,
titles, and paths and names that are taken from these pass `format_command_line` or `mask`. The result has no control
characters, no invisible characters, and of the latter no secret that is known by its name or shape. It may
still look like markup: widgets render it as plain text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NewType

Clean = NewType("Clean", str)
"""Text that has passed `clean`: printable, bounded, and safe to send to a terminal as it is."""

LIMIT = 4096
MASK = "***"
MARK = "\N{REPLACEMENT CHARACTER}"
ELLIPSIS = "…"

# ---------------------------------------------------------------------------------------------------------------
# Characters

_MOST_COMBINING = 2

# Printable to Python, yet drawn as nothing: Hangul fillers, the grapheme joiner, Khmer inherent vowels.
_INVISIBLE = frozenset("\u115f\u1160\u3164\uffa0\u034f\u17b4\u17b5")

# Symbols to which Rich 15 gives another width than tmux 3.3a with glibc 2.36, asked one by one: those that Unicode 16
# made wide (trigrams, digrams, counting rods), and circled numbers.
_UNEVEN = (("\u2630", "\u2637"), ("\u268a", "\u268f"), ("\u3248", "\u324f"), ("\U0001d300", "\U0001d376"))


def clean(raw: str | bytes, limit: int = LIMIT) -> Clean:
    """Return *raw* safe to show and to record, in at most *limit* (at least 1) characters; a cut ends with "…".

    Controls, escapes, line breaks, surrogates, direction overrides, zero-width, private and unassigned characters
    become U+FFFD, so that they are visible; odd spaces become spaces. More than two combining marks on a base are
    dropped. Terminals draw some characters in different widths, which would push a row out of line: the skin tone and
    the joiner of an emoji are dropped, a flag becomes its two letters, and spacing marks (Mc) become U+FFFD. Bytes are
    read as UTF-8. Never raises, and `clean(clean(x)) == clean(x)`.
    """
    if isinstance(raw, bytes):
        # A character has at most four bytes, so this is enough to know whether the text must be cut.
        raw = raw[: 4 * (limit + 1)].decode("utf-8", "replace")
    if len(raw) > limit:
        raw = raw[: max(limit, 1) - 1] + ELLIPSIS
    if raw.isascii() and raw.isprintable():
        return Clean(raw)
    return Clean("".join(_visible(raw)))


def shorten(text: str, limit: int) -> Clean:
    """Return a clean text; of a long one both ends, with "…" between them.

    Mask secrets before: a secret that is cut may no longer be recognised.
    """
    room = max(limit, 1) - 1
    if len(text) > limit:
        text = text[: room // 2] + ELLIPSIS + text[len(text) - (room - room // 2) :]
    return clean(text, limit)


def _visible(text: str) -> Iterable[str]:
    """Yield each character of *text* in a visible form."""
    base = ""
    marks = 0
    for char in text:
        if " " <= char <= "~":
            shown = char
        elif _is_combining(char):
            if base and marks < _MOST_COMBINING:
                marks += 1
                yield char
                continue
            if base:
                continue
            shown = MARK  # With no base of its own it would be drawn onto the neighbouring cell.
        elif _is_joiner(char):
            # Part of how an emoji is written; between letters it would only disguise a name.
            if base and unicodedata.category(base) == "So":
                continue
            shown = MARK
        elif "\U0001f1e6" <= char <= "\U0001f1ff":  # one cell in tmux, and two in kitty and Ghostty
            shown = chr(ord(char) - 0x1F1E6 + ord("A"))
        elif unicodedata.category(char) == "Mc" or any(first <= char <= last for first, last in _UNEVEN):
            shown = MARK  # a spacing mark takes one cell in tmux (glibc's wcwidth) and Ghostty, none in kitty and Rich
        elif unicodedata.category(char) == "Zs":
            shown = " "
        else:
            shown = char if char.isprintable() and char not in _INVISIBLE else MARK
        base, marks = shown, 0
        yield shown


def _is_joiner(char: str) -> bool:
    """Return whether *char* is a variation selector, the zero-width joiner or a skin tone."""
    return (
        "\ufe00" <= char <= "\ufe0f"
        or char == "\u200d"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0100" <= char <= "\U000e01ef"
        or "\u180b" <= char <= "\u180f"
    )


def _is_combining(char: str) -> bool:
    """Return whether terminals draw *char* onto the cell before it: marks without a width, Hangul vowels and finals."""
    if char in _INVISIBLE or _is_joiner(char):
        return False
    return (
        unicodedata.category(char) in ("Mn", "Me")
        or "\u1160" <= char <= "\u11ff"
        or ("\ud7b0" <= char <= "\ud7fb" and char.isprintable())
    )


def fit(text: str, cells: int, *, ellipsis: str = ELLIPSIS) -> str:
    """Return a clean text, cut or padded to exactly *cells* terminal cells; a CJK character takes two.

    A cut ends in *ellipsis* if that leaves room for text. Widths are those of `rich.cells`, which lays out the
    dashboard.
    """
    if cells <= 0:
        return ""
    if text.isascii():
        if len(text) <= cells:
            return text.ljust(cells)
        if ellipsis == ELLIPSIS or ellipsis.isascii():
            room = cells - len(ellipsis)
            return text[:room] + ellipsis if room > 0 else text[:cells]
    # Deferred: most text is ASCII, and `--once` need not pay for a table of widths.
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return set_cell_size(text, cells)
    room = cells - cell_len(ellipsis)
    return set_cell_size(text, room) + ellipsis if room > 0 else set_cell_size(text, cells)


def cell_width(text: str) -> int:
    """Return the number of terminal cells of *text*; each of gpuwatch's own signs takes one."""
    if text.isascii() or text.translate(_SIGNS).isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


# ---------------------------------------------------------------------------------------------------------------
# Command lines

# Characters that are searched for secrets beyond those that are shown: a secret that is cut at the end of the searched
# text may not be recognised, so that the last ones are never shown.
_MARGIN = 1024


def format_command_line(argv: Sequence[str], limit: int = LIMIT) -> Clean:
    """Return *argv* as one clean line of at most *limit* characters, with its secrets masked.

    Arguments with spaces or quotes are quoted; a single one is a title, and stays as it is. Empty arguments at the end,
    which a title leaves behind, are dropped. A line of any length costs no more than one of *limit*.
    """
    shown, was_cut = _bounded(argv, limit + _MARGIN)
    words = redact(shown)
    line = words[0] if len(words) == 1 else " ".join(map(quote, words))
    if was_cut:
        line = line[: min(max(len(line) - _MARGIN, 0), max(limit, 1) - 1)] + ELLIPSIS
    return clean(line, limit)


def mask(raw: str | bytes, limit: int = LIMIT) -> Clean:
    """Return a title, or a path or name that may hold an argument, as `clean` does, with its secrets masked.

    Its secrets are masked before it is cut: one that is cut may no longer be known.
    """
    return format_command_line([raw if isinstance(raw, str) else raw.decode("utf-8", "replace")], limit)


def _bounded(argv: Sequence[str], budget: int) -> tuple[list[str], bool]:
    """Return the first arguments of *argv* up to *budget* characters, and whether any were left out."""
    taken: list[str] = []
    for arg in argv:
        if len(arg) + 1 > budget:
            taken.append(arg[: max(budget, 0)])
            return taken, True
        taken.append(arg)
        budget -= len(arg) + 1
    while taken and not taken[-1]:
        taken.pop()
    return taken, False


def quote(arg: str) -> str:
    """Return an argument as in a command line: quoted where it has spaces or quotes."""
    if arg and not _compiled(_QUOTED).search(arg):
        return arg
    if "'" not in arg:
        return f"'{arg}'"
    return '"' + _compiled(_ESCAPED_IN_QUOTES).sub(r"\\\1", arg) + '"'


# ---------------------------------------------------------------------------------------------------------------
# Secrets

# Replaces each character of a secret while others are searched; no argument contains it.
_HIDDEN = "\0"
# Longest name of a flag or variable; of a longer word the end counts.
_NAME_LIMIT = 128

# One of these is in every argument with a secret. Most arguments cost no more than the search for them.
_HINTS = (
    *("pass", "pwd", "token", "secret", "key", "cred", "auth", "bearer", "://", "hook", "ntfy.sh", "curl", "login"),
    *("hf_", "api_org_", "sk-", "sk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-"),
    *("akia", "asia", "ltai", "aiza", "ya29.", "xox", "xapp-", "eyj", "nvapi-", "npm_", "pypi-", "dckr_", "dapi"),
    *("hvs.", "r8_", "rpa_", "pplx-", "xai-", "lsv2_", "tvly-", "pcsk_", "wandb_v", "gls", "glc_", "sg.", ":aa"),
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = _words(
    "pass passwd password passwords passphrase passcode pwd token secret secrets credential credentials cred creds"
    " auth authorization bearer apikey accesskey privatekey secretkey"
)
_SECRET_ENDINGS = ("token", "password", "passwd", "passphrase", "secret", "apikey", "accesskey", "secretkey")
_KEY_OWNERS = _words(
    "api access private secret auth account signing encryption master service shared session license subscription"
    " wandb openai anthropic claude gemini cohere mistral groq deepseek together replicate openrouter perplexity xai"
    " huggingface hf ngc nvidia aws azure gcp google github gitlab comet neptune clearml mlflow langchain langsmith"
    " pinecone tavily serper serpapi slack discord telegram pushover datadog sentry grafana"
)
# `--auth-type basic`, `--token-file path`: about a secret, but not one.
_ABOUT_WORDS = _words(
    "type types kind file files path paths dir id ids count len length limit size level loss rate ttl expiry"
    " timeout url uri endpoint host port method mode scheme provider policy name prob mask budget index dim"
    " embedding embeddings free through sock socket dropout ratio idx pos position"
)
# `--max-token 512`, `--eos_token "</s>"`, `--forward-pass`: the token of a language model, the pass of a loop.
_MODEL_WORDS = _words(
    "max min num n per new first last next eos bos pad unk cls sep mask image audio video vision special stop"
    " begin start end think thinking prompt decode prefill two multi single one forward backward"
)
# `--no-auth train.py`: a switch, whose next argument is not its value.
_SWITCH_WORDS = _words("no disable enable with without use skip require ask prompt has is allow")

# Compiled on first use: `--once` on a machine without secrets needs none.
_compiled = functools.cache(re.compile)

_QUOTED = r"[\s'\"]"
_ESCAPED_IN_QUOTES = r'(["\\$`])'
_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_TRIVIAL = r"(?i:true|false|yes|no|on|off|none|null|auto)|[0-9]{1,2}"
# A name may be in brackets, as in `os.environ["API_KEY"] = "X"`; a value behind a comma is in quotes.
_NAMED = r"""(?isx)
    (?<![\w.\-])(?=[\w.\-]*?(?:pass|pwd|token|secret|key|cred|auth|bearer))
    (?P<name>[\w.\-]++)
    (?P<quote>\\?["']?)(?:(?<=["'])\s*+\])?
    (?P<sep>\s*+(?::=|=>|[=:])\s*+|\s*+,\s*+(?=[rbfu]{0,2}["'])|\s++)
    (?:(?:bearer|(?<=:\s)(?:basic|digest|token))\s++)?"""
_VALUE = r"""(?sx)(?:
    [rbfuRBFU]{0,2}(?:\"{3}.*?(?:\"{3}|\Z)|'{3}.*?(?:'{3}|\Z)|"(?:\\.|[^"\\])*+"?|'[^']*+'?)
    | (?:\\.|[^\s"';|&)}\\]|\\$)++)"""
# `curl -u user:password`; `docker run -u 1000:1000` is none.
_CURL_USER = r"""(?x)
    (?<!\S)(?:-[A-Za-z]{0,8}[uU]\s*+|--(?:proxy-)?user[\s=]\s*+)["']?[^\s:"']*+:(?P<secret>[^\s"']++)"""
_CURL_USER_FLAG = r"-[A-Za-z]{0,8}[uU]|--(?:proxy-)?user"
_FORMS = (
    # The userinfo of a URL ends at the last "@" before its path (RFC 3986, 3.2.1).
    r"""://(?P<secret>[^\s/?#'"]*)@""",
    r"(?s)-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----(?P<secret>.*?)(?:(?=-----END)|\Z)",
    # The rest is a secret of the chat service and its customer. Source: the rules of gitleaks and
    # detect-secrets; docs.ntfy.sh/publish, where the topic "is essentially a password"; the URLs of apprise.
    r"""(?ix)(?:
        hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/
        | https?://[^\s"'?\#]{0,200}?/(?:web)?hooks?(?:b2)?/
        | maker\.ifttt\.com/trigger/[^\s"']{0,80}?/with/key/
        | (?<![\w.\-])ntfy\.sh/
        | (?<![\w.\-])(?:slack|discord|tgram|msteams|mmosts?|rockets?|ntfys?|pover|gotifys?)://
        )(?!\0|\*\*\*)(?P<secret>[^\s"'`)]+)""",
    r"""(?ix)[?&](?:key|sig|signature|code|x-amz-signature|x-goog-signature)=
        (?!(?:true|false|yes|no|on|off|none|null|auto|[0-9]{1,2})(?:[\s"'&\#`)]|\Z))(?P<secret>[^\s"'&\#`)]+)""",
    r"""(?x)(?<![\w.\-])wandb['"]?\s++login\s++(?:-\S*+\s++){0,4}+(?P<secret>[^\s;|&'"\-][^\s;|&'"]*+)""",
)
# Searched for after the names of secrets, which may be a part of what they match.
_LAST_FORMS = (
    r"""(?i)\bbearer\s+(?P<secret>[^\s"']+)""",
    r"""(?x)(?P<secret>(?<![A-Za-z0-9])(?:
        hf_(?:[A-Za-z0-9]{20,}|(?=[A-Za-z]{0,64}[0-9])[A-Za-z0-9]{10,}) | api_org_[A-Za-z0-9]{20,}   # Hugging Face
        | g?sk[_\-](?:[A-Za-z0-9]{20,}|(?=[A-Za-z_\-]{0,64}[0-9])[\w\-]{16,})   # OpenAI, Anthropic, Stripe, Groq
        | (?:gh[pousr]_|github_pat_|gl(?:pat|dt)-|xox[abeoprs]-|xapp-)[\w\-]{8,}   # GitHub, GitLab, Slack
        | (?:AKIA|ASIA|LTAI)[A-Za-z0-9]{12,} | AIza[\w\-]{30,} | ya29\.[\w\-]{20,}   # AWS, Aliyun, Google
        | (?:nvapi-|npm_|pypi-|dckr_pat_|hvs\.|lsv2_(?:pt|sk)_|wandb_v[0-9]_)[\w\-]{16,}
        | (?:r8|rpa|pcsk)_\w{30,} | (?:pplx|xai)-[A-Za-z0-9]{32,} | tvly-(?:[a-z]+-)?[A-Za-z0-9]{20,}
        | dapi[a-f0-9]{32} | gl(?:sa|c)_[A-Za-z0-9+/]{30,} | SG\.[\w\-]{22}\.[\w\-]{43}   # Grafana, SendGrid
        | eyJ[\w\-]{8,}\.[\w\-.]+   # JSON Web Token
        )
        | (?<![0-9])[0-9]{6,16}:A[\w\-]{34}(?![\w\-])   # a bot of Telegram, also in a URL, behind `bot`
        )""",
)


def redact(argv: Sequence[str]) -> list[str]:
    """Return a copy of *argv* with its secrets replaced by "***".

    Known by name: `--token X`, `--token=X`, `API_KEY=X`, `X-Api-Key: X`, `"password": "X"`, `environ["API_KEY"] =
    "X"`, also inside an argument that is a script. Known by shape: the userinfo and the signature of a URL, the
    webhooks of chat services, `Bearer X`, `curl -u user:X`, and the tokens of the usual services. A name counts by
    its whole words, so `--tokenizer` and `--max-tokens` keep their values. A secret with neither a known name nor a
    known shape stays. Never raises.

    Source of the shapes: config/gitleaks.toml of gitleaks/gitleaks, detect_secrets/plugins of Yelp/detect-secrets; for
    Replicate, RunPod, xAI, LangSmith, Tavily, Pinecone and Weights & Biases smaller scanners, which agree on them.
    """
    # Most command lines have no secret.
    if not _may_hold_secret("\n".join(argv)):
        return list(argv)
    hidden = _hide_in_words(argv)
    if len(argv) == 1:  # a title: its words are arguments, too
        parts = _compiled(r"(\s)").split(argv[0])
        parts[::2] = _hide_in_words(parts[::2])
        hidden = ["".join(map(min, "".join(parts), hidden[0]))]  # hidden by either
    return [_compiled(_HIDDEN + "+").sub(MASK, arg) for arg in hidden]


def _may_hold_secret(text: str) -> bool:
    lowered = text.lower()
    for hint in _HINTS:  # noqa: SIM110 - a generator takes twice as long, and each argument of each line passes here
        if hint in lowered:
            return True
    return False


def _hide_in_words(argv: Sequence[str]) -> list[str]:
    """Return arguments of the same length with `_HIDDEN` for each character of a secret."""
    result: list[str] = []
    value_follows = False
    before = program = ""
    for arg in argv:
        bare = arg.strip("'\"")
        word, is_flag = bare.lower(), before.startswith("-")
        if value_follows and (word == "bearer" or (word in ("basic", "digest", "token") and not is_flag)):
            result.append(arg)  # between a header's name and its secret; `--auth basic` is a value, though
        elif value_follows and not arg.startswith("-"):
            result.append(arg if _is_no_secret(before, arg) else _HIDDEN * len(arg))
            value_follows = False
        elif program == "curl" and _compiled(_CURL_USER_FLAG).fullmatch(before):
            user, colon, password = arg.partition(":")
            result.append(user + colon + _HIDDEN * len(password))
            before = arg
        else:
            is_script = is_flag and before.endswith("c") and not before.startswith("--")  # `bash -lc`, `python -c`
            text = _hide_in_text(arg, is_script=is_script)
            result.append(_compiled(_CURL_USER).sub(_hide, text) if program == "curl" else text)
            is_login = program == "wandb" and (bare == "login" or (value_follows and arg.startswith("-")))
            is_name = bare.startswith("-") and not _compiled("[= ]").search(bare) and _is_secret_name(bare)
            value_follows = is_login or word in ("bearer", "authorization:") or (is_name and not _is_switch(bare))
            before = arg
        program = next((name for name in ("curl", "wandb") if arg.rpartition("/")[2] == name), program)
    return result


@functools.lru_cache(maxsize=256)
def _is_secret_name(name: str) -> bool:
    """Return whether a flag, variable, header or key of this name contains a secret, by the words in the name."""
    words = _split_name(name[-_NAME_LIMIT:])
    if not words or words[-1] in _ABOUT_WORDS:
        return False
    if any(after in ("key", "keys") and before in _KEY_OWNERS for before, after in pairwise(words)):
        return True
    secret = {word for word in words if word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS)}
    return bool(secret) and not (secret <= {"token", "pass"} and not _MODEL_WORDS.isdisjoint(words))


def _split_name(name: str) -> list[str]:
    """Split *name* into lower-case words at punctuation, digits and the capitals of camelCase."""
    # `-DpassWord=X` gives a property to Java, `-PapiKey=X` to Gradle.
    return [word.lower() for word in _compiled(_WORD).findall(name, 2 if name.startswith(("-D", "-P")) else 0)]


def _is_switch(name: str) -> bool:
    return not _SWITCH_WORDS.isdisjoint(_split_name(name)[:1])


def _is_no_secret(name: str, value: str) -> bool:
    """Return whether *value* is only a switch or a number, or the working directory that `--pwd` and PWD name."""
    is_folder = name.strip("-").lower() == "pwd" and value.startswith(("/", "~"))
    return is_folder or bool(_compiled(_TRIVIAL).fullmatch(value))


def _hide(match: re.Match[str]) -> str:
    """Return the text of a match with its group `secret` hidden."""
    start, end = (place - match.start() for place in match.span("secret"))
    return match[0][:start] + _HIDDEN * (end - start) + match[0][end:]


def _hide_in_text(text: str, *, is_script: bool) -> str:
    """Hide the secrets inside one argument; *is_script* when it is the text of a `sh -c` or `python -c`."""
    if not _may_hold_secret(text):
        return text
    for form in _FORMS:
        text = _compiled(form).sub(_hide, text)
    if "curl" in text and _compiled(r"(?<![\w.\-])curl(?![\w.\-])").search(text):
        text = _compiled(_CURL_USER).sub(_hide, text)
    parts: list[str] = []
    done, match = 0, _compiled(_NAMED).search(text)
    while match:
        resume = match.end("name")
        # Only now, so that a line full of harmless names is not read to its end for each of them.
        value = _compiled(_VALUE).match(text, match.end()) if _has_secret(match) else None
        if value and not _is_no_secret("", value[0]):
            resume = _end_of_value(match, value.end(), is_script=is_script)
            parts += (text[done : match.end()], _HIDDEN * (resume - match.end()))
            done = resume
        match = _compiled(_NAMED).search(text, resume)
    text = "".join(parts) + text[done:]
    for form in _LAST_FORMS:
        text = _compiled(form).sub(_hide, text)
    return text


def _has_secret(match: re.Match[str]) -> bool:
    """Return whether *match* contains the name of a secret, and its value follows."""
    name, sep, text = match["name"], match["sep"].strip(), match.string
    is_login_key = name == "key" and "login(" in text[max(0, match.start() - 80) : match.start()]  # wandb.login(key=X)
    if not is_login_key and not _is_secret_name(name):
        return False
    follows = text[match.end() : match.end() + 2]
    match sep:
        case "":  # `--token X`; but in prose and code, a word after a word is not its value
            return name.startswith("-") and not follows.startswith("-") and not _is_switch(name)
        case ",":  # os.environ.setdefault("API_KEY", "X"), and not add_argument("--token", "-t")
            in_call = bool(match["quote"]) and text[max(0, match.start() - 2) : match.start() - 1] == "("
            return in_call and follows[1:] != "-"
        case ":":  # `http://auth:8080` is a host, `token://` a scheme, `team/auth:v2` an image
            return follows != "//" and text[match.start() - 1 : match.start()] != "/"
    is_comparison = follows.startswith("=") and match.start() > 0  # `if token == other`
    return not is_comparison and not (name.strip("-").lower() == "pwd" and follows.startswith(("/", "~")))


def _end_of_value(match: re.Match[str], end: int, *, is_script: bool) -> int:
    """Return the end of the value after *match*, *end* if it is one word; within quotes it may have spaces."""
    text, start = match.string, match.start()
    opener = text[start - 1 : start]
    if opener in ("'", '"') and not match["quote"]:  # -H 'X-Api-Key: a b'
        closer = text.find(opener, match.end())
        return closer if closer >= 0 else len(text)
    # The whole argument is `--name=value`, `NAME=value`, `Header: value` or `--env=NAME=value`.
    if not is_script and (start == 0 or opener == "=") and match["sep"].strip() and not match["quote"]:
        return len(text)
    return end


# ---------------------------------------------------------------------------------------------------------------
# Our own signs in ASCII

_LONGER_SIGNS = {ord("≥"): ">=", ord("→"): "->", ord("←"): "<-", ord("°"): ""}
_SIGNS = str.maketrans("·—–−…×↑↓“”●▲✓Σ▾▴", '.---~x^v""!*=Sv^') | _LONGER_SIGNS
_SEPARATOR = re.compile(r"(?<=\S) · (?=\S)")
_PRODUCT = re.compile(r"(?<=\w)·(?=\w)")


def spell_signs(text: str) -> str:
    """Return a text with gpuwatch's own signs in ASCII: a separator is `|`, a product is `*` (`GiB*h`)."""
    if text.isascii():
        return text
    return _PRODUCT.sub("*", _SEPARATOR.sub(" | ", text)).translate(_SIGNS)


def mask_url(url: str) -> str:
    """Return a URL without its secret: `slack://…`."""
    found = re.match(r"([A-Za-z][A-Za-z0-9.+-]{0,30})://", url)
    return f"{found[1]}://…" if found else "…"
