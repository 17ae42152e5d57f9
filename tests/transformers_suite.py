"""
Runs Transformers' own model tests on this model. A development script, which downloads the source distribution of the
installed release unless it is given one.

    python tests/transformers_suite.py                       # every configuration below
    python tests/transformers_suite.py --only default        # one of them
    python tests/transformers_suite.py --peer                # MarianMTModel in the same harness, for comparison

    python tests/transformers_suite.py --generation-tests transformers/tests/generation/test_utils.py

Prints pytest's counts for each configuration and the reasons for skipped tests. The source distribution lacks the
generation tests, which come from the given file or from GitHub. If they are unavailable, an empty module replaces them,
as it does the export tests and the common keywords of configurations, which this project tests itself.
"""

import argparse
import collections
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import transformers

ROOT = Path(__file__).resolve().parent.parent

GENERATION_TESTS = "tests/generation/test_utils.py"
REPOSITORY = f"https://raw.githubusercontent.com/huggingface/transformers/v{transformers.__version__}/"

STUBS = {
    "tests/__init__.py": "",
    "tests/exporters/__init__.py": "",
    "tests/exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "tests/generation/__init__.py": "",
    GENERATION_TESTS: "class GenerationTesterMixin:\n    pass\n",
    "tests/utils/__init__.py": "",
    "tests/utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
}

# Common to all models: sizes, inputs, and the two tester classes that Transformers' mixin uses.
HARNESS = """
import unittest

import torch
from transformers import MarianConfig, MarianModel, MarianMTModel
from transformers.models.auto import modeling_auto
from transformers.testing_utils import require_torch, torch_device

from tests.generation.test_utils import GenerationTesterMixin
from tests.test_configuration_common import ConfigTester
from tests.test_modeling_common import ModelTesterMixin, ids_tensor


class Tester:
    vocab_size = 99
    batch_size = 13
    seq_length = encoder_seq_length = decoder_seq_length = 7
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True
    pad_token_id, bos_token_id, eos_token_id = 1, 0, 2

    def __init__(self, parent, config_class, fields):
        self.parent, self.config_class, self.fields = parent, config_class, fields

    def get_config(self):
        sizes = dict(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            decoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=4,
            decoder_ffn_dim=4,
            dropout=0.1,
            attention_dropout=0.1,
            max_position_embeddings=50,
            pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            decoder_start_token_id=3,
        )
        return self.config_class(**(sizes | self.fields))

    def prepare_config_and_inputs_for_common(self):
        shape = [self.batch_size, self.seq_length]
        input_ids = ids_tensor(shape, self.vocab_size).clamp(3)
        input_ids[:, -1] = self.eos_token_id
        decoder_input_ids = ids_tensor(shape, self.vocab_size).clamp(3)
        ones = torch.ones(shape, dtype=torch.long, device=torch_device)
        inputs = {
            "input_ids": input_ids,
            "attention_mask": ones,
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": ones.clone(),
        }
        return self.get_config(), inputs


class Suite(ModelTesterMixin):
    is_encoder_decoder = True
    test_missing_keys = False
    config_class = fields = None

    def setUp(self):
        self.model_tester = Tester(self, self.config_class, self.fields)
        self.config_tester = ConfigTester(self, config_class=self.config_class)

    def test_config(self):
        self.config_tester.run_common_tests()
"""

SCRATCH = """
from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration, ScratchModel

# The mixin looks up which classes have a loss in the tables of Transformers' own models.
modeling_auto.MODEL_MAPPING_NAMES["scratch"] = "ScratchModel"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["scratch"] = "ScratchForConditionalGeneration"


@require_torch
class ScratchTest(Suite, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (ScratchModel, ScratchForConditionalGeneration)
    config_class = ScratchConfig
    fields = FIELDS
    test_missing_keys = True
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self):
        super().setUp()
        # The mixin takes any config with `rope_parameters` to be that of a rotary model.
        if "rope_scaling" in self.id() and self.fields.get("position_embedding_type") != "rotary":
            self.skipTest("this configuration has no rotary positions to scale")
        if "rope_scaling" in self.id() and self.id().endswith(("dynamic", "yarn")):
            self.skipTest("ScratchConfig refuses this rope_type")
        if "bc_cache_name" in self.id():
            self.skipTest("both names of the cache are this model's own; the test expects a warning at the older one")
"""

ENCODER = """
from modeling_scratch import ScratchConfig, ScratchEncoderModel


class EncoderTester(Tester):
    is_training = False  # the encoder alone has no loss

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        config.is_encoder_decoder = False
        return config, {name: inputs[name] for name in ("input_ids", "attention_mask")}


@require_torch
class ScratchEncoderTest(Suite, unittest.TestCase):
    all_model_classes = (ScratchEncoderModel,)
    is_encoder_decoder = False
    test_missing_keys = True
    config_class = ScratchConfig
    fields = FIELDS

    def setUp(self):
        super().setUp()
        self.model_tester = EncoderTester(self, self.config_class, self.fields)
"""

PEER = """
@require_torch
class MarianTest(Suite, GenerationTesterMixin, unittest.TestCase):
    all_model_classes = (MarianModel, MarianMTModel)
    config_class = MarianConfig
    fields = {}
"""

CONFIGURATIONS = {
    "default": {},
    "post-norm": {"norm_position": "post", "final_norm": False},
    "learned": {"position_embedding_type": "learned"},
    "modern": {
        "position_embedding_type": "rotary",
        "norm_type": "rms_norm",
        "gated_ffn": True,
        "activation_function": "silu",
        "attention_bias": False,
        "ffn_bias": False,
    },
}


def fetch_generation_tests(given: Path | None, folder: Path) -> None:
    """Put the generation tests under `folder` if they are available, and print where they come from."""
    target = folder / GENERATION_TESTS
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if given is None:
            with urllib.request.urlopen(REPOSITORY + GENERATION_TESTS, timeout=20) as answer:
                target.write_bytes(answer.read())
        else:
            target.write_bytes(given.read_bytes())
        print(f"generation tests: {given or REPOSITORY + GENERATION_TESTS}")
    except urllib.error.URLError as error:
        print(f"generation tests: none, because {REPOSITORY}{GENERATION_TESTS} is not available ({error})")


def unpack(sdist: Path | None, folder: Path) -> None:
    """Put the tests of Transformers' source distribution, and stubs for what they lack, under `folder`."""
    if sdist is None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, f"transformers=={transformers.__version__}", "--dest", str(folder)], check=True)
        (sdist,) = folder.glob("transformers-*.tar.gz")
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            path = member.name.partition("/")[2]
            if path.startswith("tests/") and path.endswith(".py"):
                member.name = path
                archive.extract(member, folder, filter="data")
    for path, text in STUBS.items():
        target = folder / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def run(folder: Path, name: str, suite: str, selection: list[str]) -> bool:
    """Run a suite and print its counts and the reasons for skipped tests. True if nothing failed."""
    path = folder / f"test_{name.replace('-', '_')}.py"
    path.write_text(HARNESS + suite)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n", "auto", "-W", "ignore", "-p", "no:cacheprovider"]
    command += [*selection, str(path)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    *lines, summary = result.stdout.rstrip().splitlines()
    print(f"== {name}: {summary.strip('= ')}")
    if result.returncode:
        print("\n".join(line for line in lines if not line.startswith("SKIPPED")), result.stderr)
    reasons = collections.Counter()
    for line in lines:
        if match := re.match(r"SKIPPED \[(\d+)\] \S+ (.*)", line):
            reasons[match[2]] += int(match[1])
    for reason, count in reasons.most_common():
        print(f"   {count:3d} skipped: {reason}")
    return result.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", type=Path, help="Transformers' source distribution, instead of downloading it")
    parser.add_argument("--generation-tests", type=Path, help="tests/generation/test_utils.py of the repository")
    parser.add_argument("--only", choices=CONFIGURATIONS, help="one configuration")
    parser.add_argument("--peer", action="store_true", help="run MarianMTModel instead")
    options, selection = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fetch_generation_tests(options.generation_tests, folder)
        unpack(options.sdist, folder)
        if options.peer:
            return 0 if run(folder, "marian", PEER, selection) else 1
        names = [options.only] if options.only else list(CONFIGURATIONS)
        passed = [
            run(folder, f"{name}{head}", suite.replace("FIELDS", repr(CONFIGURATIONS[name])), selection)
            for name in names
            for head, suite in (("", SCRATCH), ("-encoder", ENCODER))
        ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
