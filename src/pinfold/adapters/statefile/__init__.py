"""State files on disk: bounded reads, and writes that leave the old file or the new one."""
