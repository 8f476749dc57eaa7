"""What runs on a node, watched for a short while: one reader for all who want to know."""
