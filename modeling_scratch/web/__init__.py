"""Exports to JavaScript: a page that translates in the browser, itself in page/, and folders for transformers.js."""
