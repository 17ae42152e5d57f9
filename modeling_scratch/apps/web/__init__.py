"""Exports to JavaScript: a page that translates in the browser (see page/), and folders for transformers.js."""
