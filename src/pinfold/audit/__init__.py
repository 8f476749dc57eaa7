"""What is wrong with who may run where: one finding for each."""
