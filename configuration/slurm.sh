#!/bin/bash
# A SLURM job on several nodes; further arguments are passed to train.py:
#     sbatch --array=1-5%1 configuration/slurm.sh --config RECIPE output_dir=/shared/run
# The jobs of the array run one after another, each resuming where the last one stopped: --max-minutes ends a job before
# SLURM does. A job that failed, or was preempted and requeued, resumes too. For a checkpoint at another time, send
# SIGUSR1: sbatch --signal=USR1@120, or scancel --signal=USR1 JOB. Train on one node with --nodes=1.
#SBATCH --job-name=translator
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

MAIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 10000))  # jobs may share a node
export MAIN PORT
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # srun does not inherit it
# The launcher's options of these names. For one node, Accelerate (1.15) drops --main_process_ip and --main_process_port,
# and all launchers of the node would meet at one default port, under one default name.
export PET_RDZV_ENDPOINT=$MAIN:$PORT PET_RDZV_ID=$SLURM_JOB_ID
# SLURM may send a signal to the launcher alone, which passes on these.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1

# In the place of this shell, srun gets the signals of --signal=B:USR1, and passes them on.
# shellcheck disable=SC2016  # each node fills in its own
exec srun bash -c '
    exec accelerate launch --config_file "${LAUNCH_CONFIG:-configuration/accelerate/ddp-nodes.yaml}" \
        --rdzv_backend c10d \
        --num_machines "$SLURM_NNODES" --num_processes "$((SLURM_NNODES * SLURM_GPUS_ON_NODE))" \
        --machine_rank "$SLURM_NODEID" --main_process_ip "$MAIN" --main_process_port "$PORT" \
        train.py --auto-resume --max-minutes 700 "$@"
' bash "$@"
