/* libcuda.so.1: torch asks whether device 0's primary context is up, and which one is current. */
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { if (flags) *flags = 0; *active = 1; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
