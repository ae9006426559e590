"""Stand-in for a training script: a job with forked workers that computes for a moment each second.

It prints its rank and its PID once its workers are there.
"""

import argparse
import os
import select
import time


def parse() -> argparse.Namespace:
    """Read the command line, as any training script does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--epoch", type=float, default=0.0, help="seconds after which new workers are forked; 0: never")
    parser.add_argument("--busy", type=float, default=0.0, help="seconds of CPU a second")
    return parser.parse_args()


def start_epoch(options: argparse.Namespace) -> tuple[int, list[int]]:
    """Fork the workers of an epoch; return the end of the pipe that keeps them alive, and their PIDs."""
    read, alive = os.pipe()
    workers = []
    for _ in range(options.workers):
        pid = os.fork()
        if not pid:
            os.close(alive)
            os.read(read, 1)  # until the job has closed the other end, or has ended
            os._exit(0)
        workers.append(pid)
    os.close(read)
    return alive, workers


def compute(seconds: float) -> None:
    """Use so much CPU."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def main() -> None:
    """Train until killed."""
    options = parse()
    alive, workers = start_epoch(options)
    os.write(1, f"{options.rank} {os.getpid()}\n".encode())  # in one piece: others write too
    ends = time.monotonic() + options.epoch
    while True:
        select.select([], [], [], 1.0 if options.busy or options.epoch else None)
        compute(options.busy)
        if options.epoch and time.monotonic() >= ends:
            os.close(alive)
            for pid in workers:
                os.waitpid(pid, 0)
            alive, workers = start_epoch(options)
            ends += options.epoch


if __name__ == "__main__":
    main()
