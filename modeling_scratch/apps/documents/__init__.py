"""Documents: their text is translated, and their structure stays. Each format of `FORMATS` has a module."""

# The module of each format, with a function `read_MODULE`. Some need packages from an extra.
FORMATS = {"text": "plain", "markdown": "markdown", "html": "html", "srt": "srt"}
# The format of each file name suffix.
ENDINGS = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".srt": "srt"}
WITH_INLINE_MARKUP = {"markdown", "html"}  # formats with tags that are placed by word alignments
