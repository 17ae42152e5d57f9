"""Options that all commands share."""

from typing import Annotated

import typer

Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]
