"""A page that translates in the browser: exporting a model folder to it, and the page itself."""
