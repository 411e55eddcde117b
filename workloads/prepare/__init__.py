"""Raw files to prepared datasets: arrays that training maps into memory."""
