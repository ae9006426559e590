"""Policy of ending processes: the user, the uid whose processes may be ended, and the command line's permissions."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """User of gpuwatch, and the permissions from the command line."""

    uid: int
    euid: int
    pid: int
    """PID of gpuwatch."""
    sudo_uid: int | None = None
    read_only: bool = False
    allow_root: bool = False

    @classmethod
    def of_this_process(
        cls, *, read_only: bool, allow_root: bool = False, environ: Mapping[str, str] = os.environ
    ) -> Policy:
        """Return the policy for the user of this program; `SUDO_UID` counts only for root."""
        sudo = environ.get("SUDO_UID", "")
        sudo_uid = int(sudo) if sudo.isdecimal() and sudo.isascii() else None
        return cls(os.getuid(), os.geteuid(), os.getpid(), sudo_uid, read_only, allow_root)

    @property
    def may_end(self) -> int:
        """The uid whose processes may be ended: the user's, and under sudo the caller's."""
        return self.sudo_uid if self.euid == 0 and self.sudo_uid is not None else self.euid
