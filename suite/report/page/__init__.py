"""The results as one HTML file that opens offline."""
