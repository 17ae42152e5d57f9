"""An HTTP translation service with LibreTranslate's API and a web page."""
