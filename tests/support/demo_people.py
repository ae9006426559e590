"""PIDs, people and GPUs of the demo's script, by what tests look for."""

from __future__ import annotations

from gpuwatch.sources.demo import script

VIEWER_UID = script().people[script().viewer]

RANKS = {15226: 0, 15227: 2, 15228: 5, 15229: 6}
"""GPU of each rank of ada's run, by PID."""
STRAY_PID = 15260
LEFTOVER_PID = 15391
RUN_PID = 22871
RUN_WORKER_PIDS = range(RUN_PID + 9, RUN_PID + 13)
HOSTILE_PID = 23117
GONE_PID = 19552
SECRET_PID = 18233

FILLING_GPU, UNATTRIBUTED_GPU, LEAKING_GPU, XID_GPU, LOST_GPU, CAPPED_GPU, HOT_GPU, FREE_GPU = 1, 2, 2, 2, 5, 6, 6, 7
CYCLE, LONG_CYCLE = 120.0, 900.0
"""Seconds after which the troubles come again."""
