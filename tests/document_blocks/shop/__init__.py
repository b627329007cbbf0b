"""The reader's project, as far as pages speak of it without showing it. What a page does show takes its place."""
