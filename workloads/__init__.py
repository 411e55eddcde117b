"""Workloads: dataset schemas, streams of batches (synthetic and real), frequency statistics, and the DLRM."""
