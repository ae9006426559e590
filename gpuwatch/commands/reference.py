"""Reference of the commands: usage, exit codes and examples, for `--help`, the man page and the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

NO_GPU: Final = {3: "no driver or no GPU"}
UNREADABLE: Final = {2: "bad usage, or a file that cannot be read"}


class Command(NamedTuple):
    """Command: what it does, its arguments, its exit codes, and examples with their meaning."""

    words: str
    usage: str = ""
    """Arguments behind the flags."""
    codes: Mapping[int, str] = {}
    """Exit codes that differ from `DONE` and `MISTAKE`."""
    examples: Mapping[str, str] = {}

    def exit_codes(self) -> dict[int, str]:
        """Return the meaning of each exit code, in their order."""
        return dict(sorted({**_COMMON, **self.codes}.items()))


_COMMON: Final = {0: "done", 2: "bad usage, or a mistake in a file"}

EXIT_CODES: Final = {
    0: "done, even if there is nothing to list",
    1: "what you asked for does not exist, or was not done",
    2: "bad usage, or a mistake in a file",
    3: "no driver, no GPU, or no answer from a server",
    130: "stopped with Ctrl-C",
}
"""Exit codes in general."""

DASHBOARD: Final = Command(
    "show the dashboard; with --once, --json or --stream print instead",
    codes={2: "bad usage, a mistake in a file, or no terminal", **NO_GPU},
    examples={
        "gpuwatch --mine": "the dashboard, with your own processes",
        "gpuwatch --once --gpu 0,2": "two GPUs as a table; --json: as JSON",
        "gpuwatch run --empty -- ./train.sh": "start a program on a GPU that nobody uses",
        "gpuwatch strays": "which of your processes to end, and how",
        "gpuwatch report --since 7d": "who used how much in the last week",
    },
)

GROUPS: Final = {
    "look": {
        "explain": Command(
            "show what a process declared, which GPUs it sees, and why",
            "(PID | --visible [VALUE])",
            {1: "no such process, or no visible GPU", 3: "no driver or no GPU (it prints what it can)"},
            {
                "gpuwatch explain 4711": "what process 4711 declared, and where",
                "gpuwatch explain --visible 2,0": "which GPUs CUDA_VISIBLE_DEVICES=2,0 shows",
            },
        ),
        "events": Command(
            "list past alerts, and how they ended",
            codes={0: "done, even without events", 1: "nothing was recorded yet", **UNREADABLE},
            examples={
                "gpuwatch events --since 8h --gpu 0": "alerts of GPU 0 in the last 8 hours",
                "gpuwatch events --user ada --follow": "alerts about ada, and new ones as they are raised",
            },
        ),
        "replay": Command(
            "play a recording in the dashboard, or copy it",
            "FILE ...",
            {2: "bad usage, a file that cannot be read, or no terminal"},
            {"gpuwatch replay day --at 03:10": "play it from 03:10 on", "gpuwatch replay day --copy new": "copy it"},
        ),
        "fleet": Command(
            "show all machines that a Prometheus server knows",
            codes={2: "bad usage, no known server, or no terminal", 3: "with --json: no answer from the server"},
            examples={"gpuwatch fleet --filter 'free>=4'": "hosts with 4 free GPUs"},
        ),
        "doctor": Command(
            "check what gpuwatch needs, and suggest fixes",
            codes={0: "nothing to fix", 1: "something to fix, such as a missing driver", 2: "bad usage"},
        ),
        "docs": Command("show the documentation, one page per topic", "[PAGE]", {2: "no such page"}),
    },
    "start": {
        "pick": Command(
            "print GPUs that have room, for CUDA_VISIBLE_DEVICES",
            codes={1: "not enough GPUs have room", 3: "no driver, no GPU, or with --fleet no answer from the server"},
            examples={
                "export CUDA_VISIBLE_DEVICES=$(gpuwatch pick -n 2)": "choose two empty GPUs",
                "gpuwatch pick --fleet -n 4 --memory 70GiB": "hosts with 4 such GPUs",
            },
        ),
        "run": Command(
            "pick GPUs, set the share for every framework, and start a program",
            "(--share F|--memory SIZE|--empty) [--] COMMAND ...",
            {0: "and any other: from the program", 1: "no room", **NO_GPU, 126: "cannot be run", 127: "not found"},
            {
                "gpuwatch run --share 0.4 -- python train.py": "with 40 % of one GPU",
                "gpuwatch run --empty --wait -n 2 -- ./train.sh": "wait for two empty GPUs",
            },
        ),
    },
    "clean up": {
        "strays": Command(
            "list your own abandoned processes that still hold GPU memory",
            codes={0: "done, even without strays", **NO_GPU},
        ),
        "kill": Command(
            "end your own processes, or a whole run",
            "PID ...",
            {0: "all have ended", 1: "one was refused or still runs, or you answered no", **NO_GPU},
            {
                "gpuwatch kill 4711 --signal INT": "interrupt it, as Ctrl-C does",
                "gpuwatch kill 4711 --run": "end its whole run: launcher, ranks, workers",
            },
        ),
        "message": Command(
            "print a polite message to the owner of a process, or to a user",
            "PID|USER",
            {1: "no such process, or the user uses no GPU", **NO_GPU},
        ),
    },
    "record and share": {
        "report": Command(
            "show how much each user held and used, as far as it was recorded",
            codes={1: "nothing was recorded yet, or you answered no", **UNREADABLE},
            examples={
                "gpuwatch report --since yesterday --by run": "one table, of runs",
                "gpuwatch report --html week.html": "a page with charts",
            },
        ),
        "watch": Command(
            "record events and use, and send messages, without a terminal",
            codes={0: "ended by --for or SIGTERM", 1: "it cannot continue", 130: "Ctrl-C"},
            examples={
                "gpuwatch watch --quiet --for 8h": "record for 8 hours",
                "gpuwatch watch --unit": "a systemd unit for the machine's service",
            },
        ),
        "export": Command(
            "serve metrics for Prometheus; print rules or a Grafana dashboard",
            codes={0: "ended by SIGTERM", 1: "it cannot continue", 2: "bad usage, or an unusable address or folder"},
            examples={
                "gpuwatch export --per-process 20": "also of the 20 largest processes",
                "gpuwatch export --rules >gpuwatch.yml": "rules for Prometheus",
            },
        ),
        "notify": Command(
            "send a test message to the addresses in your gpuwatch.toml",
            "--test",
            {0: "every address accepted it", 1: "one did not", 2: "bad usage, or no address in [notify]"},
        ),
        "status": Command("print one short line for the status bar of tmux", codes=NO_GPU),
        "config": Command(
            "show, check or create a gpuwatch.toml",
            "(--show | --init | --check)",
            {0: "no mistake", 2: "a mistake in a file, or --init found one"},
        ),
        "completion": Command(
            "print completions for bash, zsh, fish or tcsh",
            "SHELL",
            {2: "unknown shell"},
            {
                "source <(gpuwatch completion bash)": "in ~/.bashrc",
                'eval "$(gpuwatch completion zsh)"': "in ~/.zshrc, after compinit",
                "gpuwatch completion fish | source": "in ~/.config/fish/config.fish",
            },
        ),
    },
}
"""Commands in groups; the module `gpuwatch.commands.NAME` runs each."""
COMMANDS: Final = {name: command for commands in GROUPS.values() for name, command in commands.items()}
