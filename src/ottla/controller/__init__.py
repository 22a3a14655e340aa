"""The controller: pure decisions over the image, and the runtime that makes them true in the metadata log."""
