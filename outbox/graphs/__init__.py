"""Message graphs: processors that read topics and write topics, joined by them, each step exactly once."""
