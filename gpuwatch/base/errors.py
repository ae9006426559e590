"""Errors that reach the user.

GpuwatchError
├── UsageError         a flag, a key, a file's contents (exit 2)
└── UnavailableError   no driver, no GPU, no answer from a server (exit 3)
    └── NoThreadError  the system gives no more threads (exit 3 at the start)

Each message is one line for a person: what was found, what is allowed or what to do next.
"""


class GpuwatchError(Exception):
    """Base of every error that reaches the user; `exit_code` is the exit code of the program."""

    exit_code = 1


class UsageError(GpuwatchError):
    """Error in a flag, a configuration key or a file."""

    exit_code = 2


class UnavailableError(GpuwatchError):
    """Error where a driver, a GPU or a server that the command needs is missing."""

    exit_code = 3


class NoThreadError(UnavailableError):
    """Error where the system starts no more threads: running work continues, and the caller may try again."""


PROCESS_LIMIT = "the limit of processes is reached (ulimit -u, or the cgroup's pids.max)"
"""Why the system starts no thread and no process (EAGAIN); both limits count threads."""
