"""Pictures: curves, attention, positions, the architecture."""
