"""The study of docs/studies: its experiments are run, and its page gets their figures."""
