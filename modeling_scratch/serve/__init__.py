"""An HTTP service that translates, with LibreTranslate's interface and a page."""
