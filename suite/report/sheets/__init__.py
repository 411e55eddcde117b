"""The published sheets: each as Markdown, CSV and LaTeX."""
