"""What makes a release: the manual, wheels, what they are made of, and a check of them."""
