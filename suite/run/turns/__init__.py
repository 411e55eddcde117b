"""Systems take turns: who goes when, where they live, and what came of it."""
