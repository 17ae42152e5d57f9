"""Where the project's processes begin: `scratch`, `python -m modeling_scratch`, train.py and hub_upload.py."""

import os
import signal

from .errors import escape_what_output_lacks

# How many turns a waiting thread of PyTorch spins before it gives up its core. By default (300,000), two trainings on
# the same cores all but stop each other; with too few, one alone spends its time falling asleep and waking up
# (docs/lab/performance.md, Beside another training).
SPIN_COUNT = "5000"


def main(command: str | None = None) -> None:
    """Set up this process, then run a command; None: the one that the arguments begin with."""
    # Before torch is imported, since libraries read these once.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    # By default, oneDNN caches 1,024 kernels. Batches have more shapes than that, so it would keep making kernels anew,
    # in ever more memory.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    escape_what_output_lacks()  # of `--help` too
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that Ctrl-C during the imports prints no traceback
    from .commands import app, load_command

    (load_command(command) if command else app)()


if __name__ == "__main__":
    main()
