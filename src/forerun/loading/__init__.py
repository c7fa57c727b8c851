"""From a name, a folder or a file to a model on the best pass for it."""
