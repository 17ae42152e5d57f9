"""Documents: their text is translated, and their structure stays. `FORMATS` has a module for each format."""

# The module of each format, which has a function `read_NAME`; some need packages from an extra.
FORMATS = {"text": "plain", "markdown": "markdown", "html": "html", "srt": "srt"}
# Keys of FORMATS by file name suffix.
ENDINGS = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".srt": "srt"}
WITH_INLINE_MARKUP = {"markdown", "html"}  # formats whose tags are placed by word alignments
