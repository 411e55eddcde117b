/* A virtual CUDA device in host memory: what PyTorch and fbgemm call of the CUDA runtime's documented interface, but for
 * streams (streams.c) and what is refused (refused.c). Pages that nobody touches cost nothing. No native kernel runs: a
 * launch is an error that names the kernel, since one that silently did nothing would leave wrong numbers behind.
 *
 * VCUDA_MEMORY: the device's bytes, 80 GiB unless it is set. */
#define _GNU_SOURCE
#include "vcuda.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define CONTEXT ((size_t)512 << 20) /* what a context takes of an H100, roughly */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread cudaError_t last_error;

cudaError_t vcuda_fail(cudaError_t error) { return last_error = error; }

/* ------------------------------------------------------------ memory: blocks in the order of their addresses */

enum { DEVICE, MANAGED, HOST, REGISTERED, KINDS };
struct block { char *at; size_t bytes; int kind; };
static struct block *blocks;
static size_t block_count, block_room;
static size_t used[KINDS];
struct freed { char *at; size_t bytes; uint64_t before; }; /* unmapped once all work queued before is done */
static struct freed *freed;
static size_t freed_count, freed_room;

static size_t capacity(void) {
    const char *text = getenv("VCUDA_MEMORY");
    return text ? strtoull(text, NULL, 10) : (size_t)80 << 30;
}

static size_t position(const char *at) { /* how many blocks begin at an address or before it */
    size_t low = 0, high = block_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (blocks[middle].at <= at) low = middle + 1; else high = middle;
    }
    return low;
}

static struct block *block_of(const void *at) {
    size_t behind = position(at);
    struct block *b = behind ? &blocks[behind - 1] : NULL;
    return b && (const char *)at < b->at + b->bytes ? b : NULL;
}

static void enter(char *at, size_t bytes, int kind) {
    if (block_count == block_room) blocks = realloc(blocks, (block_room = 2 * block_room + 64) * sizeof *blocks);
    size_t here = position(at);
    memmove(blocks + here + 1, blocks + here, (block_count++ - here) * sizeof *blocks);
    blocks[here] = (struct block){at, bytes, kind};
    used[kind] += bytes;
}

static void leave(struct block *b) {
    used[b->kind] -= b->bytes;
    memmove(b, b + 1, (size_t)(blocks + --block_count - b) * sizeof *b);
}

static void unmap_freed(void) {
    uint64_t unfinished = vcuda_unfinished();
    size_t kept = 0;
    for (size_t i = 0; i < freed_count; i++) {
        if (freed[i].before <= unfinished) munmap(freed[i].at, freed[i].bytes);
        else freed[kept++] = freed[i];
    }
    freed_count = kept;
}

static cudaError_t allocate(void **out, size_t bytes, int kind) {
    *out = NULL;
    if (!bytes) return cudaSuccess;
    pthread_mutex_lock(&lock);
    unmap_freed();
    int fits = kind != DEVICE || used[DEVICE] + CONTEXT + bytes <= capacity();
    void *at = fits ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (at != MAP_FAILED) enter(*out = at, bytes, kind);
    pthread_mutex_unlock(&lock);
    return at == MAP_FAILED ? vcuda_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

static cudaError_t release(void *at, int host) {
    if (!at) return cudaSuccess;
    pthread_mutex_lock(&lock);
    struct block *b = block_of(at);
    int sound = b && b->at == at && b->kind != REGISTERED && (b->kind == HOST) == host;
    if (sound) {
        if (freed_count == freed_room) freed = realloc(freed, (freed_room = 2 * freed_room + 64) * sizeof *freed);
        freed[freed_count++] = (struct freed){b->at, b->bytes, vcuda_now()};
        leave(b);
        unmap_freed();
    }
    pthread_mutex_unlock(&lock);
    return sound ? cudaSuccess : vcuda_fail(cudaErrorInvalidValue);
}

cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, DEVICE); }
cudaError_t cudaMallocManaged(void **p, size_t n, unsigned flags) { return allocate(p, n, MANAGED); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return allocate(p, n, HOST); }
cudaError_t cudaMallocHost(void **p, size_t n) { return allocate(p, n, HOST); }
cudaError_t cudaFree(void *p) { return release(p, 0); }
cudaError_t cudaFreeHost(void *p) { return release(p, 1); }

cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
    pthread_mutex_lock(&lock);
    int known = block_of(p) != NULL;
    if (!known) enter(p, n, REGISTERED);
    pthread_mutex_unlock(&lock);
    return known ? vcuda_fail(cudaErrorHostMemoryAlreadyRegistered) : cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) { /* its owner may free it next, as fbgemm does: a driver waits before it lets go of pages */
    cudaDeviceSynchronize();
    pthread_mutex_lock(&lock);
    struct block *b = block_of(p);
    int sound = b && b->at == p && b->kind == REGISTERED;
    if (sound) leave(b);
    pthread_mutex_unlock(&lock);
    return sound ? cudaSuccess : vcuda_fail(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags) { *out = host; return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    pthread_mutex_lock(&lock);
    *total = capacity();
    size_t taken = CONTEXT + used[DEVICE];
    *available = taken < *total ? *total - taken : 0;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static int kind_of(const void *at, size_t bytes, int *whole) { /* -1: pageable; whole: no byte lies behind the block */
    pthread_mutex_lock(&lock);
    struct block *b = block_of(at);
    int kind = b ? b->kind : -1;
    *whole = !b || (const char *)at + bytes <= b->at + b->bytes;
    pthread_mutex_unlock(&lock);
    return kind;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at) {
    static const enum cudaMemoryType types[KINDS] = {cudaMemoryTypeDevice, cudaMemoryTypeManaged, cudaMemoryTypeHost, cudaMemoryTypeHost};
    int whole, kind = kind_of(at, 0, &whole);
    memset(out, 0, sizeof *out);
    out->type = kind < 0 ? cudaMemoryTypeUnregistered : types[kind];
    out->device = kind < 0 ? -2 : 0;
    out->devicePointer = kind < 0 ? NULL : (void *)at;
    out->hostPointer = kind == DEVICE ? NULL : (void *)at;
    return cudaSuccess;
}

static cudaError_t known(const void *at) { int whole; return kind_of(at, 0, &whole) < 0 ? vcuda_fail(cudaErrorInvalidValue) : cudaSuccess; }
cudaError_t cudaMemAdvise(const void *p, size_t n, enum cudaMemoryAdvise a, struct cudaMemLocation l) { return known(p); }
cudaError_t cudaMemPrefetchAsync(const void *p, size_t n, struct cudaMemLocation l, unsigned f, cudaStream_t s) { return known(p); }

/* ------------------------------------------------------------ copies */

/* What comes from pageable memory has left it when the call returns, and what goes there has arrived. */
static cudaError_t transfer(void *to, const void *from, size_t bytes, cudaStream_t s) {
    if (!bytes) return cudaSuccess;
    int whole_to, whole_from, t = kind_of(to, bytes, &whole_to), f = kind_of(from, bytes, &whole_from);
    if (!whole_to || !whole_from) return vcuda_fail(cudaErrorInvalidValue);
    int host_only = t != DEVICE && t != MANAGED && f != DEVICE && f != MANAGED;
    if (f < 0) {
        void *kept = malloc(bytes);
        if (!kept) return vcuda_fail(cudaErrorMemoryAllocation);
        from = memcpy(kept, from, bytes);
    }
    vcuda_copy(s, to, from, bytes, f < 0);
    if (t < 0 || host_only) vcuda_reach(s);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind k, cudaStream_t s) { return transfer(to, from, n, s); }
cudaError_t cudaMemcpyPeerAsync(void *to, int t, const void *from, int f, size_t n, cudaStream_t s) { return transfer(to, from, n, s); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind k) {
    cudaError_t error = transfer(to, from, n, NULL);
    vcuda_reach(NULL);
    return error;
}

void vcuda_zero(char *at, size_t bytes) { /* whole pages of ours are given back: they read as zero, and cost nothing until they are written */
    int whole, kind = kind_of(at, bytes, &whole);
    char *first = (char *)(((uintptr_t)at + PAGE - 1) & ~(PAGE - 1)), *last = (char *)(((uintptr_t)at + bytes) & ~(PAGE - 1));
    if (bytes < 64 * PAGE || kind < 0 || kind == REGISTERED || madvise(first, (size_t)(last - first), MADV_DONTNEED)) {
        memset(at, 0, bytes);
        return;
    }
    memset(at, 0, (size_t)(first - at));
    memset(last, 0, (size_t)(at + bytes - last));
}
cudaError_t cudaMemsetAsync(void *at, int value, size_t n, cudaStream_t s) {
    int whole;
    kind_of(at, n, &whole);
    if (!whole) return vcuda_fail(cudaErrorInvalidValue);
    if (n) vcuda_fill(s, at, value, n);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *at, int value, size_t n) { return cudaMemsetAsync(at, value, n, NULL); }

/* ------------------------------------------------------------ the device */

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? vcuda_fail(cudaErrorInvalidDevice) : cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *text, int n, int device) { snprintf(text, (size_t)n, "0000:00:00.0"); return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    if (device) return vcuda_fail(cudaErrorInvalidDevice);
    *p = (struct cudaDeviceProp){
        .totalGlobalMem = capacity(), .sharedMemPerBlock = 49152, .sharedMemPerBlockOptin = 232448,
        .sharedMemPerMultiprocessor = 233472, .reservedSharedMemPerBlock = 1024, .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536, .warpSize = 32, .memPitch = 2147483647, .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64}, .maxGridSize = {2147483647, 65535, 65535}, .totalConstMem = 65536, .major = 9,
        .textureAlignment = 512, .texturePitchAlignment = 32, .multiProcessorCount = 132, .canMapHostMemory = 1,
        .concurrentKernels = 1, .ECCEnabled = 1, .asyncEngineCount = 3, .unifiedAddressing = 1, .memoryBusWidth = 5120,
        .l2CacheSize = 52428800, .maxThreadsPerMultiProcessor = 2048, .maxBlocksPerMultiProcessor = 32,
        .streamPrioritiesSupported = 1, .managedMemory = 1, .concurrentManagedAccess = 1, .hostRegisterSupported = 1,
        .canUseHostPointerForRegisteredMem = 1, .cooperativeLaunch = 1,
    };
    snprintf(p->name, sizeof p->name, "Virtual CUDA device in host memory");
    memcpy(p->uuid.bytes, "virtual-cuda-dev", 16);
    return cudaSuccess;
}

/* ------------------------------------------------------------ native kernels: known by name, and refused */

struct native { const void *host; const char *name; };
static struct native *natives; /* in the order in which they are registered */
static size_t native_count, native_room;

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) { }
void __cudaUnregisterFatBinary(void **handle) { }
char __cudaInitModule(void **handle) { return 1; }
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global) { }
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, void *block, void *grid, int *warp) {
    pthread_mutex_lock(&lock);
    if (native_count == native_room) natives = realloc(natives, (native_room = 2 * native_room + 1024) * sizeof *natives);
    natives[native_count++] = (struct native){host, name};
    pthread_mutex_unlock(&lock);
}

/* how a kernel is to be launched: nobody asks, for none is */
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) { return cudaSuccess; }

void vcuda_report(const char *what) { /* for who started us to read, however this process ends */
    const char *path = getenv("VCUDA_REPORT");
    FILE *report = path ? fopen(path, "a") : NULL;
    if (report) {
        fprintf(report, "%s\n", what);
        fclose(report);
    }
}

static cudaError_t refuse(const void *host) { /* looked for one by one: nobody launches often */
    static struct native unknown = {NULL, "a kernel without a name"};
    struct native *k = &unknown;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < native_count; i++) if (natives[i].host == host) k = &natives[i];
    pthread_mutex_unlock(&lock);
    fprintf(stderr, "The virtual CUDA device runs no native kernel: %s was refused.\n", k->name);
    vcuda_report(k->name);
    return vcuda_fail(cudaErrorNoKernelImageForDevice);
}

cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) { return refuse(f); }
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) { return refuse(f); }
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) { return refuse(f); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { return refuse(f); }
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host) { *out = (cudaKernel_t)host; return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t f, enum cudaFuncAttribute a, int v, int d) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *f) {
    *out = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .numRegs = 32, .ptxVersion = 90, .binaryVersion = 90, .maxDynamicSharedSizeBytes = 49152};
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int threads, size_t shared, unsigned flags) {
    *blocks = 2048 / (threads > 64 ? threads : 64);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int threads, size_t shared) { return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0); }

/* ------------------------------------------------------------ errors */

cudaError_t cudaGetLastError(void) { cudaError_t e = last_error; last_error = cudaSuccess; return e; }
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorName(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : e ? "cudaError" : "cudaSuccess"; }
const char *cudaGetErrorString(cudaError_t e) {
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument (virtual CUDA device)";
    case cudaErrorMemoryAllocation: return "out of memory (virtual CUDA device)";
    case cudaErrorAssert: return "a kernel failed on the virtual CUDA device (its traceback stands on stderr)";
    case cudaErrorNoKernelImageForDevice: return "the virtual CUDA device runs no native kernels (its name stands on stderr)";
    case cudaErrorNotSupported: return "the virtual CUDA device does not support this call";
    default: return "an error of the virtual CUDA device";
    }
}
