#!/bin/bash
# A SLURM job on several nodes; further arguments are passed to train.py:
#     sbatch --array=1-5%1 configuration/slurm.sh --config RECIPE output_dir=/shared/run
# The jobs of the array run one after another, each resuming where the last one stopped: --max-minutes ends a job before
# SLURM does. A job that failed, or was preempted and requeued, resumes too. (The launcher does not restart processes:
# each restart would reset --max-minutes.) Train on one node with --nodes=1.
#SBATCH --job-name=translator
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

MAIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MAIN
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # srun does not inherit it

# shellcheck disable=SC2016  # each node fills in its own
srun bash -c '
    exec accelerate launch --config_file "${LAUNCH_CONFIG:-configuration/accelerate/ddp-nodes.yaml}" \
        --rdzv_backend c10d \
        --num_machines "$SLURM_NNODES" --num_processes "$((SLURM_NNODES * SLURM_GPUS_ON_NODE))" \
        --machine_rank "$SLURM_NODEID" --main_process_ip "$MAIN" --main_process_port 29500 \
        train.py --auto-resume --max-minutes 700 "$@"
' bash "$@"
