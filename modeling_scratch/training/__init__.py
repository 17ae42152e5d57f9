"""From batches to a scored model."""
