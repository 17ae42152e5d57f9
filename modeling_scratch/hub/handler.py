"""
Answers requests to this model on Hugging Face Inference Endpoints, in the form of the Hub's tasks translation and
text2text-generation: https://huggingface.co/docs/inference-endpoints/engines/toolkit
"""

from typing import Any

import torch
from transformers import AutoConfig, pipeline


class EndpointHandler:
    """
    ```python
    handler = EndpointHandler("path/of/this/folder")
    handler({"inputs": "The cat sleeps."})  # [{"translation_text": "Die Katze schläft."}]
    handler({"inputs": ["The cat sleeps.", "We run."], "parameters": {"num_beams": 4}})  # one for each input
    ```

    Args:
        path: the folder of the model. Its Python files run.
    """

    def __init__(self, path: str = ""):
        config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        device = 0 if torch.cuda.is_available() else -1
        self.pipeline = pipeline(next(iter(config.custom_pipelines)), path, device=device, trust_remote_code=True)

    def __call__(self, data: dict[str, Any]) -> list:
        """
        Args:
            data: `inputs`, a text or a list of texts, and `parameters`, if any: arguments of the pipeline and of
                `generate`, those of `generate` also within `generate_parameters`.

        Raises:
            ValueError: an input or a parameter is not valid.
        """
        parameters = dict(data.get("parameters") or {})
        parameters |= parameters.pop("generate_parameters", None) or {}
        return self.pipeline(data["inputs"], **parameters)
