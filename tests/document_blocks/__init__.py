"""What stands in the code blocks of the documents works: it runs, or the parser it is meant for takes it."""
