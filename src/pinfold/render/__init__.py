"""Pure presentation: values in, text or SVG out; knows nothing of planning or of adapters."""
