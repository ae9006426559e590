"""Start jobs that have GPUs' device files open, in a mount namespace with stand-ins for these files.

`python launcher.py GPUS` reads one job a line from stdin, a folder and a command line in JSON, and kills all of them
when its stdin ends. What a job prints goes to the launcher's stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

_NEWNS, _NEWUSER, _REC_PRIVATE = 0x00020000, 0x10000000, 0x4000 | 0x40000


def open_devices(gpus: int) -> None:
    """Open what CUDA opens: the files of all GPUs, of the driver, and of unified memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_NEWNS if uid == 0 else _NEWNS | _NEWUSER):
        sys.exit(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    if uid:
        for name, text in ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"):
            Path("/proc/self", name).write_text(text)
    if libc.mount(b"none", b"/", None, _REC_PRIVATE, None) or libc.mount(b"tmpfs", b"/dev", b"tmpfs", 0, None):
        sys.exit(f"no stand-ins for device files: {os.strerror(ctypes.get_errno())}")
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in range(gpus))):
        os.set_inheritable(os.open(f"/dev/{name}", os.O_CREAT | os.O_RDWR), True)


def main() -> None:
    """Start what is asked for; the kernel reaps what has ended."""
    open_devices(int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        folder, command = json.loads(line)
        os.chdir(folder)
        os.posix_spawn(command[0], command, os.environ, setsigdef=[signal.SIGCHLD])
    os.killpg(0, signal.SIGKILL)  # it leads a session of its own


if __name__ == "__main__":
    main()
