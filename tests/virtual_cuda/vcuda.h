/* What the parts of the virtual CUDA runtime share. */
#pragma once
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*vcuda_kernel)(size_t token);

cudaError_t vcuda_fail(cudaError_t error);
void vcuda_report(const char *what);

/* Queue work behind all that the stream has. Without VCUDA_LATE it is done before these return. */
void vcuda_copy(cudaStream_t stream, void *to, const void *from, size_t bytes, int owned);
void vcuda_fill(cudaStream_t stream, void *at, int value, size_t bytes);
void vcuda_reach(cudaStream_t stream); /* do all that the stream has by now, and what that waits for */

uint64_t vcuda_now(void);       /* the number of the work that is queued next, whatever stream it is queued on */
uint64_t vcuda_unfinished(void); /* the number of the oldest work that is not done */
void vcuda_zero(char *at, size_t bytes);
