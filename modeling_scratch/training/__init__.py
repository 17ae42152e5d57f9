"""Training, from batches to a scored model."""
