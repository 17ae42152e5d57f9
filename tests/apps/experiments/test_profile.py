"""What `scratch train --profile` prints and writes."""

import gzip
import json
import re

import pytest
from conftest import SMALL_RUN, few_sentences, run_training


def test_a_profile_shows_where_the_time_goes(tmp_path, capsys):
    trace = tmp_path / "trace.json.gz"
    options = [*SMALL_RUN, *few_sentences(), f"output_dir={tmp_path / 'run'}"]
    run_training(*options, profile=str(trace))
    shares = re.findall(r"^(\S.*\S) +[\d.,]+ +(\d+)%$", capsys.readouterr().out, re.MULTILINE)
    assert {"matrix products", "element-wise", "optimizer"} <= {kind for kind, _ in shares}
    assert sum(int(share) for _, share in shares) == pytest.approx(100, abs=len(shares))
    names = {event.get("name") for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert "aten::mm" in names
    assert [path.name for path in tmp_path.iterdir()] == [trace.name]
    with pytest.raises(SystemExit):
        run_training(*options, profile=str(trace))
    assert "exists" in capsys.readouterr().err
