"""How fast training is: against a textbook step, against the machine, and as a whole workflow."""
