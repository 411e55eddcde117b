/* Calls that the virtual device refuses: attributes, symbols, graphs, memory pools, IPC, peers, libraries. They only answer,
 * so without the header's prototypes. */
#include <string.h>
enum { NOT_SUPPORTED = 801 };
#define REFUSE(name) int name(void) { return NOT_SUPPORTED; }
REFUSE(cudaDeviceEnablePeerAccess) REFUSE(cudaDeviceGetAttribute) REFUSE(cudaDeviceGetByPCIBusId)
REFUSE(cudaDeviceGetDefaultMemPool) REFUSE(cudaDeviceGetGraphMemAttribute) REFUSE(cudaDeviceSetGraphMemAttribute)
REFUSE(cudaFreeAsync) REFUSE(cudaGetSymbolAddress) REFUSE(cudaGraphAddNode) REFUSE(cudaGraphConditionalHandleCreate)
REFUSE(cudaGraphDebugDotPrint) REFUSE(cudaGraphDestroy) REFUSE(cudaGraphExecDestroy) REFUSE(cudaGraphGetNodes)
REFUSE(cudaGraphInstantiateWithFlags) REFUSE(cudaGraphLaunch) REFUSE(cudaGraphNodeGetDependencies)
REFUSE(cudaGraphRetainUserObject) REFUSE(cudaIpcCloseMemHandle) REFUSE(cudaIpcGetEventHandle)
REFUSE(cudaIpcGetMemHandle) REFUSE(cudaIpcOpenEventHandle) REFUSE(cudaIpcOpenMemHandle) REFUSE(cudaLaunchHostFunc)
REFUSE(cudaLibraryGetKernel) REFUSE(cudaLibraryLoadData) REFUSE(cudaLibraryUnload) REFUSE(cudaMallocAsync)
REFUSE(cudaMemPoolGetAttribute) REFUSE(cudaMemPoolSetAccess) REFUSE(cudaMemPoolSetAttribute) REFUSE(cudaMemPoolTrimTo)
REFUSE(cudaMemcpy2DAsync) REFUSE(cudaMemcpyToSymbol) REFUSE(cudaProfilerStart) REFUSE(cudaProfilerStop)
REFUSE(cudaStreamAddCallback) REFUSE(cudaStreamBeginCapture) REFUSE(cudaStreamBeginCaptureToGraph)
REFUSE(cudaStreamCreate) REFUSE(cudaStreamCreateWithFlags) REFUSE(cudaStreamEndCapture)
REFUSE(cudaStreamUpdateCaptureDependencies) REFUSE(cudaUserObjectCreate) REFUSE(cudaUserObjectRelease)

/* torch looks up all of the driver's functions before it uses one: device 0 is there, the rest refuses. */
static int device_get(int *device, int ordinal) { *device = ordinal; return 0; }
static int refuse(void) { return NOT_SUPPORTED; }
int cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags, int *status) {
    *out = strcmp(symbol, "cuDeviceGet") ? (void *)refuse : (void *)device_get;
    if (status) *status = 0; /* cudaDriverEntryPointSuccess */
    return 0;
}
