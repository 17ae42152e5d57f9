#!/bin/sh
# torch 2.13.0. When torchrun restarts its workers, they get the store of the workers before, with everything that these
# wrote: a key of a dead process is still there. One would guess that each start has an empty store, since
# torch/distributed/rendezvous.py says "We create a new TCPStore for every retry so no need to add prefix for each
# attempt", and relies on it. It matters to every program with --max-restarts: init_process_group reads addresses of
# dead processes from the store, so some restarts fail ("Gloo connectFullMesh failed"), and others wait in silence until
# the group's timeout. With TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which the documentation of torchrun does not name,
# each start has its own store (shown last).
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q torch==2.13.0 numpy==2.4.6
cat > worker.py <<'P'
import os
import torch
start = os.environ["TORCHELASTIC_RESTART_COUNT"]
store, *_ = next(torch.distributed.rendezvous("env://"))  # as init_process_group does
if start == "0":
    store.set("address", "of a process of start 0")
    raise SystemExit(1)  # the launcher restarts it
print("in start", start, "the store has", store.get("address") if store.check(["address"]) else "nothing")
P
v/bin/python -c 'import torch; print("torch", torch.__version__)'
v/bin/torchrun --standalone --nproc-per-node 1 --max-restarts 1 worker.py 2> log | tee output
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 v/bin/torchrun --standalone --nproc-per-node 1 --max-restarts 1 worker.py 2>> log |
    tee -a output
cat > expected <<'P'
in start 1 the store has b'of a process of start 0'
in start 1 the store has nothing
P
cmp output expected || { tail log; echo changed; exit 1; }
echo as described
