"""A run's folder, and how its processes start, agree, stop and fail."""
