"""What several layers of tests share."""
