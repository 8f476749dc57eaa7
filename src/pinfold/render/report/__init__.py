"""A report: one page of HTML with its plots, and each plot as a picture of its own."""
