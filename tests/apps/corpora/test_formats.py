"""The same pairs, in files of every format that other people's tools wrote, are the same pairs again."""

import pytest
from corpora import PAIRS, WRITERS, pairs_of, read


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_the_same_pairs_through_every_format(tmp_path, write):
    rows = read(tmp_path, *write(tmp_path, PAIRS))
    found = pairs_of(rows)
    in_order = found if write.__name__ not in ("mo_file", "polib_mo") else sorted(found, key=PAIRS.index)
    assert in_order == PAIRS
    assert len({row["origin"] for row in rows}) == len(PAIRS)
