"""From documents to what the renderers draw: one module for each picture."""
