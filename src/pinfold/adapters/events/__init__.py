"""Files with all events of simulated runs, in CSV or Parquet."""
