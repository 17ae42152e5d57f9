"""Recipes: every shipped file is valid, and overrides apply; for errors see tests/commands/bad_input.txt."""

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

from modeling_scratch import ScratchConfig, ScratchForConditionalGeneration
from modeling_scratch.errors import UserError
from modeling_scratch.recipe import CONFIGURATION_FOLDER, shipped_recipes
from modeling_scratch.recipe.reading import apply_overrides, load_recipe, model_fields, recipe_text
from modeling_scratch.recipe.schema import DataSection, ModelSection, Recipe, Section
from modeling_scratch.training.preparation import count_parameters

EMBEDDED = CONFIGURATION_FOLDER / "recipes" / "embedded.yaml"


def files(kind):
    found = sorted((CONFIGURATION_FOLDER / kind).glob("*.yaml"))
    assert found
    return pytest.mark.parametrize("path", found, ids=[path.stem for path in found])


def keys_without_a_meaning(section):
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from (f"{name}.{key}" for key in keys_without_a_meaning(field.annotation))
        elif not field.description:
            yield name


def test_every_key_has_a_meaning():
    assert not list(keys_without_a_meaning(Recipe))


@files("models")
def test_shipped_model_files_have_the_counted_parameters(path):
    with torch.device("meta"):
        model = ScratchForConditionalGeneration(ScratchConfig(**model_fields(ModelSection(config=path.stem))))
    assert model.num_parameters() == count_parameters(model.config)


def test_shared_layers_count_once():
    config = ScratchConfig(share_layers=True)
    with torch.device("meta"):
        assert ScratchForConditionalGeneration(config).num_parameters() == count_parameters(config)


@files("recipes")
def test_shipped_recipes_are_valid_and_survive_saving(path, tmp_path):
    recipe = load_recipe(path)
    assert recipe.output_dir == f"runs/{path.stem}"
    with torch.device("meta"):
        ScratchForConditionalGeneration(ScratchConfig(**model_fields(recipe.model)))
    (tmp_path / "recipe.yaml").write_text(recipe_text(recipe))
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


@files("accelerate")
def test_shipped_accelerate_configs_are_valid(path):
    assert load_config_from_file(str(path)).num_processes >= 1


def test_the_paper_s_base_and_big_sizes():
    """Table 3: 65 and 213 million parameters, with a vocabulary of 37,000."""
    for name, millions in (("base", 65), ("big", 213)):
        with torch.device("meta"):
            fields = model_fields(ModelSection(config=name, overrides={"vocab_size": 37000}))
            model = ScratchForConditionalGeneration(ScratchConfig(**fields))
        assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.03)


def test_overrides_apply_in_order_and_keep_other_keys():
    overrides = ["optimization.learning_rate=1e-4", "seed=7", "model.overrides.dropout=.2", "data.test=null"]
    recipe = load_recipe(EMBEDDED, [*overrides, "optimization.betas=[0.8, 0.9]", "data.train_files=a/b"])
    assert recipe.optimization.learning_rate == 1e-4
    assert recipe.optimization.betas == [0.8, 0.9]
    assert recipe.seed == 7
    assert recipe.model.overrides["dropout"] == 0.2
    assert recipe.model.overrides["encoder_layers"] == 2  # the file's own stay
    assert recipe.model.overrides["d_model"] == 128  # and those of the model file that it names
    assert load_recipe(EMBEDDED, ["model.start_from=x", "model.overrides={}"]).model.overrides == {}
    assert recipe.data.test is None
    assert apply_overrides({"a": {"b": 0, "d": 2}}, ["a.b=1", "a.c=x"]) == {"a": {"b": 1, "c": "x", "d": 2}}
    assert apply_overrides({"a": {"b": 0}}, ["a={}", "a.c=x"]) == {"a": {"c": "x"}}


def test_numbers_with_an_exponent_are_numbers():
    overrides = ["optimization.max_steps=1e3", "optimization.learning_rate=1e-3", "optimization.weight_decay=1e0"]
    optimization = load_recipe(EMBEDDED, overrides).optimization
    assert (optimization.max_steps, optimization.learning_rate, optimization.weight_decay) == (1000, 0.001, 1.0)


LIKE_YAML = ["exp #2", "#2", "[0-9]+", "2026-11-28", "1e3", "007", "true", "no", "on", "a: b", "- a", "*a", "&a b"]
LIKE_YAML += ["!a b", " a ", "[a, b]", "{}", "'a' b", "a\\n", "'a'|'b'", '"a" "b"', '"', "'", "&a", "~", "Null", "!a"]


@pytest.mark.parametrize("text", LIKE_YAML)
def test_a_text_on_the_command_line_is_taken_as_it_is(text):
    """Without YAML's comments, dates, numbers, lists and so on."""
    pattern = ["tokenizer.kind=pattern", f"tokenizer.pattern={text}"]
    recipe = load_recipe(EMBEDDED, [*pattern, f"output_dir={text}", f"hub.license={text}"])
    assert (recipe.tokenizer.pattern, recipe.output_dir, recipe.hub.license) == (text, text, text)
    languages = load_recipe(EMBEDDED, [f"data.source_language={text}", f"data.target_language={text}"]).data
    assert (languages.source_language, languages.target_language) == (text, text)


def test_quotes_around_a_whole_text_on_the_command_line_are_removed():
    texts = {"'a#b'": "a#b", "'it''s'": "it's", r'"a\\b\t"': "a\\b\t", " 'null' ": "null", '"a\'b"': "a'b"}
    for text, value in texts.items():
        assert load_recipe(EMBEDDED, [f"output_dir={text}"]).output_dir == value
    with pytest.raises(UserError, match=r"output_dir: .* is not YAML: .*escape"):
        load_recipe(EMBEDDED, [r'output_dir="\w+"'])


def test_where_null_lists_and_numbers_have_a_meaning_they_keep_it_on_the_command_line():
    files = ["data.train_files=[2026-11-28, 'b', c #2]", "data.test_sets={a: 7, b: [on, 1e3]}", "data.test_files=2026"]
    columns = ["data.source_column=2", "data.target_column='2'", "data.feature_columns=[3, '4', 5 #6]"]
    more = ["trackers=[007]", "model={overrides: {d_model: 128, dropout: 1e-1}}", "data.test_sets.c=null"]
    recipe = load_recipe(EMBEDDED, [*files, *columns, *more, "hub.license='null'", "data.validation=null"])
    data = recipe.data
    assert (data.train_files, data.test_files) == (["2026-11-28", "b", "c #2"], ["2026"])
    assert data.test_sets == {"a": ["7"], "b": ["on", "1e3"]}
    assert (data.source_column, data.target_column, data.feature_columns) == (2, "2", [3, "4", "5 #6"])
    assert (recipe.trackers, recipe.hub.license, data.validation) == (["007"], "null", None)
    assert recipe.model.overrides["dropout"] == 0.1


def test_a_tilde_is_expanded(monkeypatch):
    """Shells do not expand it in data.train_files=~/x."""
    monkeypatch.setenv("HOME", "/home/ada")
    files = ["data.train_files=[~/a.en, ~/a.de]", "data.validation_files=~/b", "data.test_sets={c: ~/c}"]
    recipe = load_recipe(EMBEDDED, [*files, "output_dir=~/run", "tokenizer.existing=~/d"])
    assert (recipe.output_dir, recipe.tokenizer.existing) == ("/home/ada/run", "/home/ada/d")
    files = ["/home/ada/a.en", "/home/ada/a.de"], ["/home/ada/b"], {"c": ["/home/ada/c"]}
    assert (recipe.data.train_files, recipe.data.validation_files, recipe.data.test_sets) == files


@pytest.mark.parametrize(
    "names",
    [["a/b"], ["a\0b"], [".."], ["-a"], ["x" * 251], ["\u00fc" * 126], ["Test"], ["wmt", "WMT"]],
    ids=lambda names: repr(names)[:20],
)
def test_names_of_test_sets_that_cannot_be_those_of_files_are_refused(names):
    """On any system: some do not distinguish cases. 255 bytes are the most."""
    with pytest.raises(ValueError, match="name of a test set"):
        DataSection(test_sets=dict.fromkeys(names, "files"))


def test_names_of_test_sets_may_be_numbers_and_the_null_ones_are_removed():
    sets = DataSection(test_sets={2014: "a", "\u00e9t\u00e9.v1-2": "b", "wmt": None, "WMT": "c"}).test_sets
    assert sets == {"2014": ["a"], "\u00e9t\u00e9.v1-2": ["b"], "WMT": ["c"]}


def test_a_model_file_needs_empty_overrides_in_the_recipe_of_a_run(tmp_path):
    """Its overrides have all fields of its model, and take precedence over a file."""
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_text(load_recipe(shipped_recipes()["multi30k-en-de"])))
    with pytest.raises(UserError, match=r"model\.config: .*add model\.overrides=\{\}"):
        load_recipe(path, ["model.config=small"])
    changed, expected = (
        load_recipe(recipe, ["model.config=small", "model.overrides={}"]) for recipe in (path, EMBEDDED)
    )
    assert changed.model == expected.model
    path.write_text("output_dir: run\nmodel: {overrides: 3}\noptimization: {max_steps: 1}\n")
    with pytest.raises(UserError, match=r"model\.overrides: must be a mapping"):
        load_recipe(path, ["model.config=small"])
