"""The loopback Hub's check of a model card's metadata: YAML parsed, types, licenses, the model-index."""

import re

import yaml

# huggingface.co/docs/hub/repositories-licenses
_LICENSES = """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0
    cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
    cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
    cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl
    gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl openrail++ osl-3.0 postgresql
    ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license llama2 llama3 llama3.1 llama3.2 llama3.3 gemma
    unknown other
"""
LICENSES = _LICENSES.split()

STRINGS = ("license", "license_name", "license_link", "library_name", "pipeline_tag")
STRINGS_OR_LISTS = ("language", "tags", "datasets", "metrics", "base_model")


def validate(content: str) -> dict[str, list[dict]]:
    """{"errors": [{"message": ...}], "warnings": [...]}, as POST /api/validate-yaml answers."""
    errors, warnings = [], []
    found = re.match(r"\ufeff?\s*---[ \t]*\r?\n(.*?\r?\n)?---[ \t]*(\r?\n|\Z)", content, re.DOTALL)
    if found and (found[1] or "").strip():
        try:
            data = yaml.safe_load(found[1])
        except yaml.YAMLError as error:
            errors.append(f"YAML parsing error: {getattr(error, 'problem', None) or error}")
        else:
            if isinstance(data, dict):
                errors += _check_fields(data) + _check_model_index(data.get("model-index"))
            else:
                errors.append('"value" must be of type object')
    else:
        warnings.append("empty or missing yaml metadata in repo card")
    return {"errors": [{"message": each} for each in errors], "warnings": [{"message": each} for each in warnings]}


def _check_fields(data: dict) -> list[str]:
    errors = [f'"{key}" must be a string' for key in STRINGS if key in data and not isinstance(data[key], str)]
    if isinstance(data.get("license"), str) and data["license"] not in LICENSES:
        errors.append(f'"license" must be one of [{", ".join(LICENSES)}]')
    for key in STRINGS_OR_LISTS:
        values = data.get(key, [])
        if not isinstance(values, list):
            values = {key: values}
        else:
            values = {f"{key}[{index}]": value for index, value in enumerate(values)}
        for place, value in values.items():
            if not isinstance(value, str):
                errors.append(f'"{place}" must be a string')
            elif key == "language" and not re.fullmatch(r"[a-z]{2,}(-[a-z0-9]+)*", value):
                errors.append(f'"{place}" must only contain lowercase characters')
            elif key == "base_model" and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", value):
                errors.append(f'"{place}" with value "{value}" is not valid. Use a model id from https://hf.co/models.')
    return errors


def _check_model_index(index: object) -> list[str]:
    """Every model a name and results, every result a task, a data set and metrics with values."""
    if index is None:
        return []
    errors: list[str] = []

    def field(holder: object, key: str, place: str, kind: type | None = None):
        name = f"{place}.{key}"
        value = holder.get(key) if isinstance(holder, dict) else None
        if value is None:
            errors.append(f'"{name}" is required')
        elif kind is not None and not isinstance(value, kind):
            errors.append(f'"{name}" must be {({str: "a string", list: "an array", dict: "an object"})[kind]}')
        else:
            return value
        return None

    if not isinstance(index, list):
        return ['"model-index" must be an array']
    for i, model in enumerate(index):
        place = f"model-index[{i}]"
        field(model, "name", place, str)
        for j, result in enumerate(field(model, "results", place, list) or []):
            where = f"{place}.results[{j}]"
            for part, keys in (("task", ("type",)), ("dataset", ("type", "name"))):
                holder = field(result, part, where, dict)
                for key in keys if holder is not None else ():
                    field(holder, key, f"{where}.{part}", str)
            for k, metric in enumerate(field(result, "metrics", where, list) or []):
                field(metric, "type", f"{where}.metrics[{k}]", str)
                field(metric, "value", f"{where}.metrics[{k}]")
    return errors
