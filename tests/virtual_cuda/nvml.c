/* libnvidia-ml.so.1: device 0's name, UUID, memory, processes and the driver's version, for torch, fbgemm and pynvml. Other
 * functions are not supported, or not there. */
#include <stdio.h>
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6 };
#define REFUSE(name) int name(void) { return NOT_SUPPORTED; }
int cudaMemGetInfo(size_t *available, size_t *total) __attribute__((weak));

int nvmlInit(void) { return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == SUCCESS ? "Success" : code == NOT_FOUND ? "Not Found" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "0.virtual"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return index ? NOT_FOUND : SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { *device = (void *)1; return SUCCESS; }
int nvmlDeviceGetHandleByUUID(const char *id, void **device) { *device = (void *)1; return SUCCESS; }
int nvmlDeviceGetName(void *device, char *out, unsigned n) { snprintf(out, n, "Virtual CUDA device in host memory"); return SUCCESS; }
int nvmlDeviceGetUUID(void *device, char *out, unsigned n) { snprintf(out, n, "GPU-76697274-7561-6c2d-6375-64612d646576"); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long out[3]) { /* in all, free, used */
    size_t available = 0, total = 0;
    if (!cudaMemGetInfo) return NOT_SUPPORTED;
    cudaMemGetInfo(&available, &total);
    out[0] = total;
    out[1] = available;
    out[2] = total - available;
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *infos) { *count = 0; return SUCCESS; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *infos) { return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos); }
REFUSE(nvmlDeviceGetNvLinkRemotePciInfo_v2) REFUSE(nvmlDeviceGetNvLinkState) REFUSE(nvmlDeviceGetPciInfo_v3)
REFUSE(nvmlDeviceGetNvLinkRemoteDeviceType) REFUSE(nvmlDeviceGetGpuFabricInfoV)
