#!/bin/sh
# accelerate 1.15.0 with torch 2.13.0. With --num_machines 1, `accelerate launch --rdzv_backend c10d` drops
# --main_process_ip and --main_process_port: torch's launcher gets no endpoint, and takes port 29400 with the run id
# "none", whatever port was asked for. With two machines, the same options become the endpoint. One would guess that a
# port on the command line is used on one machine as on two, since help says "The port to use to communicate with the
# machine of rank 0". It matters where two runs share a machine, such as two jobs of a cluster: they meet at one
# rendezvous, where the second waits for the first without a word. (PET_STANDALONE=1, or PET_RDZV_ENDPOINT and
# PET_RDZV_ID, which torch's launcher reads itself, keep them apart; shown last.)
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT; cd "$d"
python3 -m venv v
v/bin/pip install -q accelerate==1.15.0 torch==2.13.0
cat > worker.py <<'P'
import os
import socket
if os.environ["RANK"] == "0":
    is_open = {port: socket.socket().connect_ex(("127.0.0.1", port)) == 0 for port in (29400, 29611, 29612, 29613)}
    print("listening:", *(port for port in is_open if is_open[port]), "run id:", os.environ["TORCHELASTIC_RUN_ID"])
P
v/bin/python -c 'import accelerate, torch; print("accelerate", accelerate.__version__, "torch", torch.__version__)'
launch() {
    v/bin/accelerate launch --multi_gpu --num_machines 1 --num_processes 2 --mixed_precision no --dynamo_backend no \
        --rdzv_backend c10d --main_process_ip 127.0.0.1 --main_process_port "$1" worker.py
}
for port in 29611 29612; do
    echo "asked for port $port"
    launch "$port" | tee -a output
done
echo "with PET_RDZV_ENDPOINT=127.0.0.1:29613 and PET_RDZV_ID=third"
PET_RDZV_ENDPOINT=127.0.0.1:29613 PET_RDZV_ID=third launch 29612 | tee -a output
cat > expected <<'P'
listening: 29400 run id: none
listening: 29400 run id: none
listening: 29613 run id: third
P
cmp output expected || { echo changed; exit 1; }
echo as described
