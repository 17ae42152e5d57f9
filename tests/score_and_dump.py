"""Score a run's folder on its test split and print all of the result from the main process; not a test itself."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from modeling_scratch.recipe.reading import load_recipe
from modeling_scratch.runs.processes import make_accelerator
from modeling_scratch.training.evaluation import score_model

accelerator = make_accelerator()
result = score_model(load_recipe(Path(sys.argv[1]) / "recipe.yaml"), sys.argv[1], "test", accelerator)
if accelerator.is_main_process:
    print(json.dumps(result))
