"""What runs on a node, watched for a short while, and what of it the podresources API tells."""
