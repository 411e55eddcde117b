"""What happens in the process of one cell, from the question whether its system can run to the optimum."""
