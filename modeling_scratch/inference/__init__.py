"""From texts to translations: the model, or an ensemble of several, and word alignments."""
