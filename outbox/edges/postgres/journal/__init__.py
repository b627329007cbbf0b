"""The statements of journals: their rows, stages, fragments, and what the keeper asks."""
