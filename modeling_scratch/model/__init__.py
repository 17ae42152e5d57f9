"""The model, its pipeline and its `push_to_hub`: the files that travel with every checkpoint."""
