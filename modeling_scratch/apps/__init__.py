"""What one does with a model: translate lines and documents, serve it, export it, convert it, draw it, compare runs."""
