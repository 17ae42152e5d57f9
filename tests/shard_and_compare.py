"""
Run by two processes: shard a model by its own FSDP plan, and compare its gradients and outputs of `generate()` with
those of the whole model.
"""

import copy

import torch
from conftest import SMALL_MODEL
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.training.fused_loss import fused_cross_entropy

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    rank, mesh = torch.distributed.get_rank(), init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = ScratchForConditionalGeneration(ScratchConfig(**SMALL_MODEL, dropout=0.0))
    whole = copy.deepcopy(model)
    plan = model._expand_parallel_plan(model.fsdp_plan)
    assert len(plan) == SMALL_MODEL["encoder_layers"] + SMALL_MODEL["decoder_layers"], plan
    for name in plan:
        fully_shard(model.get_submodule(name), mesh=mesh)
    fully_shard(model, mesh=mesh)

    source, labels = torch.randint(4, 61, (4, 7)), torch.randint(4, 61, (4, 5))
    own = slice(2 * rank, 2 * rank + 2)
    model(input_ids=source[own], labels=labels[own], fused_loss=fused_cross_entropy).loss.backward()
    whole(input_ids=source, labels=labels).loss.backward()
    for (name, sharded), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(sharded.grad.full_tensor(), expected.grad, rtol=0, atol=1e-6, msg=name)
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight

    # Load whole weights, of which tied ones are stored once. The processes generate together, each for its own source.
    torch.manual_seed(1)
    other = ScratchForConditionalGeneration(ScratchConfig(**SMALL_MODEL, dropout=0.0)).eval()
    tied = other.all_tied_weights_keys
    weights = {name: weight for name, weight in other.state_dict().items() if name not in tied}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))
    settings = {"max_new_tokens": 4 + 3 * rank, "min_new_tokens": 4 + 3 * rank}
    register_fsdp_forward_method(model, "generate")
    found = model.eval().generate(source[own], **settings, synced_gpus=True)
    assert torch.equal(found, other.generate(source[own], **settings))
    print("equal")
