"""Recordings of what happens on a machine, and of the events that must come of it.

A recording is a file of JSON lines, read by `recording.read`: first a `Header`, then steps in order of time, last the
`Event`s that are expected, in the order in which they are raised. `machine.Machine` makes snapshots of the steps and
`player.play` feeds them to a history and an engine, as the watch does.

    {"about": "what it shows", "length": 600, "gpus": {"3": 80}, "people": {"ada": 1001}}
    {"t": 0, "pid": 100, "user": "ada", "gpu": 3, "gib": 12, "sm": 90}
    {"t": 60, "pid": 100, "gpu": 3, "gib": [12, 70], "until": 240}
    {"t": 300, "pid": 100, "ends": true}
    {"event": "nearly full", "gpu": 3, "severity": "warning", "raised": 240, "ended": 302, "peak": 7.5}

`t` is in seconds. What a step says holds until another says otherwise. A figure is a number, the words of a
`model.Reason` where there is none, `[from, to]` for a straight line between `t` and `until`, or `{"cycle": [[5, 70],
[3, 72.5]]}` for values that take turns, each with its seconds. Memory is in GiB.
"""
