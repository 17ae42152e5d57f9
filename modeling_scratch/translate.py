"""Text in, text out: python -m modeling_scratch.translate FOLDER_OR_NAME < source.txt > target.txt"""

import logging
import sys
from typing import Annotated

import typer

from .cli import log_to_terminal, one_line_errors


def main(
    model: Annotated[str, typer.Argument(help="a model folder or Hub name")],
    num_beams: Annotated[int | None, typer.Option(min=1, help="default: as the model was saved")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="sentences translated at once")] = 64,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Translate the lines of standard input: one line out for each line in, empty lines too."""
    log_to_terminal(logging.INFO)
    with one_line_errors(debug):
        from .evaluation import translate
        from .preparation import load_translator, make_accelerator
        from .tokenizer import load_tokenizers

        tokenizers = load_tokenizers(model)
        translator = load_translator(model).to(make_accelerator().device)
        try:
            lines = [line.strip() for line in sys.stdin.buffer.read().decode("utf-8").split("\n")]
        except UnicodeDecodeError as error:
            number = error.object[: error.start].count(b"\n") + 1
            raise ValueError(f"standard input, line {number}: not valid UTF-8 ({error.reason})") from None
        if lines[-1] == "":
            lines.pop()
        limit = translator.config.max_position_embeddings
        for number, length in enumerate(map(len, tokenizers[0](lines).input_ids if lines else []), start=1):
            if length > limit:
                raise ValueError(f"standard input, line {number}: {length} tokens, but the model takes {limit}")
        generation = {} if num_beams is None else {"num_beams": num_beams}
        filled = [index for index, line in enumerate(lines) if line]
        translations = translate(translator, *tokenizers, [lines[i] for i in filled], batch_size, **generation)
        by_line = dict(zip(filled, translations, strict=True))
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale: text in, text out
        for index in range(len(lines)):
            print(by_line.get(index, ""))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
