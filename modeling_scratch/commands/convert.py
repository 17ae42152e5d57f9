"""`scratch convert`: convert models from and to other codebases."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import as_user_error
from ..files import new_output
from .cli import Debug, log_to_terminal, one_line_errors, report

Folder = Annotated[Path, typer.Argument(help="the folder to write; it must not exist")]
_Quantization = Annotated[
    Literal["float32", "int8", "int8_float32", "int16", "float16", "bfloat16", "int8_float16", "int8_bfloat16"],
    typer.Option(help="type of the stored weights; CPUs compute in int8 or float32"),
]
_HELP = """
Convert models from and to other codebases, with weights, generation settings and tokenizers. Each command ends by
running the original and the result on the same random ids, and discards a result that differs.
"""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=_HELP)


def _report(out: Path, what: str, difference: float, *further: str) -> None:
    line = f"wrote {out}; largest difference of {what} on random ids, in float32: {difference:.1e}"
    report("\n".join([line, *further]), f"{out} is written")


@app.command("marian")
def marian_command(
    src: Annotated[str, typer.Argument(help="a Marian model: a folder or Hub name")],
    out: Folder,
    debug: Debug = False,
) -> None:
    """Convert a Marian model, such as an OPUS-MT translator, to a Scratch folder that translates the same."""
    log_to_terminal()
    with one_line_errors(debug):
        from ..apps.convert.checking import convert_folder
        from ..apps.convert.marian import from_marian
        from ..hub.model_files import Conversion

        with new_output(out) as folder:
            with as_user_error(f"{src}: ", ValueError):
                difference = convert_folder(src, folder, "marian", from_marian)
            Conversion("Marian model", None if Path(src).exists() else src, difference).write(folder)
        _report(out, "logits", difference)


@app.command("to-marian")
def to_marian_command(
    src: Annotated[str, typer.Argument(help="a Scratch model: a folder or Hub name")],
    out: Folder,
    debug: Debug = False,
) -> None:
    """Convert a Scratch model to a Marian folder, which Transformers loads without this project's code."""
    log_to_terminal()
    with one_line_errors(debug):
        from ..apps.convert.checking import convert_folder
        from ..apps.convert.marian import to_marian

        with new_output(out) as folder:
            difference = convert_folder(src, folder, "scratch", to_marian)
        _report(out, "logits", difference)


@app.command("torch")
def torch_command(
    state_dict: Annotated[Path, typer.Argument(help="a file written by torch.save(model.state_dict(), ...)")],
    out: Folder,
    num_heads: Annotated[int, typer.Option(min=1, help="heads per attention layer")],
    norm_position: Annotated[Literal["pre", "post"], typer.Option(help="pre: norm_first=True; post: False")],
    activation_function: Annotated[str, typer.Option(help="relu, gelu or another")],
    scale_embedding: Annotated[
        bool,
        typer.Option("--scale-embedding/--no-scale-embedding", help="whether to multiply embeddings by sqrt(d_model)"),
    ],
    pad_token_id: Annotated[int, typer.Option(min=0)],
    bos_token_id: Annotated[int, typer.Option(min=0, help="also the token that the decoder starts from")],
    eos_token_id: Annotated[int, typer.Option(min=0)],
    source_embedding: Annotated[str, typer.Option(help="its name")] = "src_tok_emb.embedding.weight",
    target_embedding: Annotated[str, typer.Option(help="its name")] = "tgt_tok_emb.embedding.weight",
    output_projection: Annotated[str, typer.Option(help="its name")] = "generator.weight",
    unk_token_id: Annotated[int | None, typer.Option(min=0)] = None,
    norm_eps: Annotated[float, typer.Option(help="layer_norm_eps")] = 1e-5,
    dropout: Annotated[float, typer.Option(help="for further training")] = 0.1,
    max_position_embeddings: Annotated[int, typer.Option(min=1, help="the longest translation")] = 1024,
    debug: Debug = False,
) -> None:
    """
    Convert the state dict of a translator around torch.nn.Transformer to a Scratch folder. Embeddings and output
    projection have the names of PyTorch's tutorial unless others are given. Save the tokenizer beside the result.
    """
    log_to_terminal()
    with one_line_errors(debug), as_user_error(kinds=ValueError):
        from ..apps.convert.checking import verify
        from ..apps.convert.torch_transformer import build_scratch, load_state_dict_file, read_torch
        from ..hub.model_files import Conversion
        from ..loading import load_translator

        with new_output(out) as folder:
            translator = read_torch(
                load_state_dict_file(state_dict),
                num_heads=num_heads,
                norm_position=norm_position,
                activation_function=activation_function,
                scale_embedding=scale_embedding,
                pad_token_id=pad_token_id,
                bos_token_id=bos_token_id,
                eos_token_id=eos_token_id,
                source_embedding=source_embedding,
                target_embedding=target_embedding,
                output_projection=output_projection,
                unk_token_id=unk_token_id,
                norm_eps=norm_eps,
                dropout=dropout,
                max_position_embeddings=max_position_embeddings,
            )
            build_scratch(translator).save_pretrained(folder)
            difference = verify(translator, load_translator(str(folder)), translator.config)
            Conversion("translator around torch.nn.Transformer", None, difference).write(folder)
        _report(out, "logits", difference)


@app.command("to-torch")
def to_torch_command(
    src: Annotated[str, typer.Argument(help="a Scratch model: a folder or Hub name")],
    out: Annotated[Path, typer.Argument(help="the file to write; it must not exist")],
    debug: Debug = False,
) -> None:
    """Convert a Scratch model to the state dict of a translator like that of PyTorch's tutorial."""
    log_to_terminal()
    with one_line_errors(debug):
        from ..apps.convert.checking import load_model, verify
        from ..apps.convert.torch_transformer import (
            TorchTranslator,
            load_state_dict_file,
            save_state_dict,
            to_torch,
        )

        with new_output(out) as file:
            model = load_model(src, "scratch")
            save_state_dict(to_torch(model), file)
            written = TorchTranslator(model.config)
            written.load_state_dict(load_state_dict_file(file))
            difference = verify(model, written, model.config)
        config = model.config
        how = (
            f"load transformer.* into torch.nn.Transformer({config.d_model}, "
            f"{config.encoder_attention_heads}, {config.encoder_layers}, {config.decoder_layers}, "
            f"{config.encoder_ffn_dim}, activation={config.activation_function!r}, "
            f"layer_norm_eps={config.norm_eps}, norm_first={config.norm_position == 'pre'}, "
            f"bias={config.attention_bias})"
            + ("" if config.final_norm else ", with its encoder.norm and decoder.norm set to None")
        )
        _report(out, "logits", difference, how)


@app.command("ctranslate2")
def ctranslate2_command(
    src: Annotated[str, typer.Argument(help="a Scratch model: a folder or Hub name")],
    out: Folder,
    quantization: _Quantization = "float32",
    debug: Debug = False,
) -> None:
    """
    Convert a Scratch model for CTranslate2's Translator, which runs without PyTorch. The folder also has the tokenizers
    and generation.json, the model's generation settings as arguments of translate_batch.
    """
    log_to_terminal()
    with one_line_errors(debug):
        from ..apps.convert.ctranslate2 import write_ctranslate2

        with new_output(out) as folder:
            difference = write_ctranslate2(src, folder, quantization)
        _report(out, "log-probabilities", difference)
