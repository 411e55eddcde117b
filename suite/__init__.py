"""The harness: plan cells, run each in a fresh process, measure, verify, record, report."""
