"""What an error of Python or a library says to a user."""

import pytest

from modeling_scratch.errors import describe_error, explained_name


@pytest.mark.parametrize("message", ["embedded null byte", "stat: embedded null character in path"])
def test_a_null_character_in_a_name_is_explained(message):
    """Python 3.13 puts the name of the function before it."""
    assert explained_name(ValueError(message)) == describe_error(ValueError(message))
    assert describe_error(ValueError(message)) == "a file's name contains a null character"
