"""Message graphs: processors joined by topics. Decisions of their declaration, of a step and of a lane. Pure."""
