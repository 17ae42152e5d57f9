"""
Measure how much of its speed a run keeps when it shares its cores with another: target tokens a second of the embedded
recipe alone; of a run begun while another trains, and of that other run; and of two begun together. The cases take
turns, for several rounds; each run is a process. The figure of the other run includes the time in which the second one
imports its libraries and scores; of two runs begun together, one may end a little earlier.

    python benchmarks/beside.py [--rounds 3] [--updates 200] [KEY=VALUE ...]

Run it on an idle machine. OMP_NUM_THREADS sets the threads of each run.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SPEED = re.compile(r"([\d,]+) target tokens/s")


class Training:
    """A running `scratch train` and its log. As a context manager, it kills the process on exit."""

    def __init__(self, folder: Path, updates: int, overrides: list[str]):
        self.log = folder / "log"
        options = [f"output_dir={folder / 'run'}", f"optimization.max_steps={updates}", "optimization.max_epochs=null"]
        options += ["evaluation.every=1000000", "evaluation.num_beams=1", "evaluation.max_new_tokens=1", *overrides]
        command = [sys.executable, "-m", "modeling_scratch", "train", "--config", "embedded", "--overwrite", *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_) -> None:
        self.process.kill()
        self.process.wait()

    def speeds(self) -> list[float]:
        """Target tokens a second since the start, after every 50 updates."""
        return [float(number.replace(",", "")) for number in SPEED.findall(self.log.read_text())]

    def speed_since(self, lines: int) -> float:
        """The speed since the log had this many lines. Each line has the average since the start."""
        while len(speeds := self.speeds()) == lines:
            self.check()
            time.sleep(0.1)
        return (len(speeds) - lines) / (len(speeds) / speeds[-1] - lines / speeds[lines - 1])

    def check(self) -> None:
        """Exit with its log if it has ended."""
        if self.process.poll() is not None:
            raise SystemExit(self.log.read_text())

    def final_speed(self) -> float:
        if self.process.wait():
            raise SystemExit(self.log.read_text())
        return self.speeds()[-1]


def measure(folder: Path, updates: int, overrides: list[str]) -> dict[str, float]:
    """One round: target tokens a second in each situation."""
    first, second = folder / "first", folder / "second"
    found = {"alone": Training(first, updates, overrides).final_speed()}
    with Training(first, 1_000_000, overrides) as other:
        while not other.speeds():
            other.check()
            time.sleep(0.1)
        before = len(other.speeds())
        found["begun beside another"] = Training(second, updates, overrides).final_speed()
        other.check()
        found["that other one meanwhile"] = other.speed_since(before)
    with Training(first, updates, overrides) as one, Training(second, updates, overrides) as two:
        found["two begun together, the slower one"] = min(one.final_speed(), two.final_speed())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="recipe keys to change")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for name in ("first", "second"):
            (Path(work) / name).mkdir()
        rounds = [measure(Path(work), args.updates, args.overrides) for _ in range(args.rounds)]
    alone = statistics.median(each["alone"] for each in rounds)
    print("| | target tokens a second | of the median alone |\n|---|---|---|")
    for what in rounds[0]:
        numbers = [each[what] for each in rounds]
        median = statistics.median(numbers)
        print(f"| {what} | {median:,.0f} ({min(numbers):,.0f} to {max(numbers):,.0f}) | {median / alone:.0%} |")


if __name__ == "__main__":
    main()
