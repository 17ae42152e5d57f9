"""What a run leaves behind, and how its processes agree and end."""
