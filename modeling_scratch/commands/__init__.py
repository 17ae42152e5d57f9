"""What one types: a module for each command of `scratch`."""
