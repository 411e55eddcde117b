"""One run: plan cells, run each in a fresh process, measure, verify, train, record."""
