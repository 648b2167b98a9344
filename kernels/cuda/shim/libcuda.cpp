// As much of the driver's library as opening a device, copying and launching takes, on top of the
// shim: built as libcuda.so, it lets the code that talks to a driver run where there is none. Its
// kernels are compiled in, so that modules are not read. Device memory is this process's own,
// behind guard pages; the page-locked kind is such memory, too. Events take no time.

#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace {

using Result = int;
constexpr Result SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, LAUNCH_FAILED = 719;

// Attributes that are asked for.
constexpr int CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76;

char context, module, event;
void* current_context = nullptr;

void* address(unsigned long long pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

extern "C" {

Result cuInit(unsigned) { return SUCCESS; }

Result cuDeviceGetCount(int* count) {
    *count = 1;
    return SUCCESS;
}

Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}

Result cuDeviceGetName(char* name, int length, int) {
    std::strncpy(name, "shim", static_cast<std::size_t>(length));
    return SUCCESS;
}

Result cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == CAPABILITY_MAJOR ? 9 : 0;
    return SUCCESS;
}

Result cuDevicePrimaryCtxRetain(void** to, int) {
    *to = &context;
    return SUCCESS;
}

Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }

Result cuCtxSetCurrent(void* to) {
    current_context = to;
    return SUCCESS;
}

Result cuCtxGetCurrent(void** to) {
    *to = current_context;
    return SUCCESS;
}

Result cuModuleLoadData(void** to, const void* ptx) {
    *to = &module;
    return std::strstr(static_cast<const char*>(ptx), ".target sm_90") ? SUCCESS : INVALID_VALUE;
}

Result cuModuleUnload(void*) { return SUCCESS; }

Result cuModuleGetFunction(const void** function, void*, const char* name) {
    for (const shim::Kernel& kernel : shim::KERNELS) {
        if (std::strcmp(kernel.name, name) != 0) continue;
        *function = &kernel;
        return SUCCESS;
    }
    return NOT_FOUND;
}

Result cuLaunchKernel(const void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      void*, void** parameters, void**) {
    if (grid_x == 0 || grid_y == 0 || grid_y > 65535 || grid_z != 1 || block_y != 1 ||
        block_z != 1 || shared_bytes != 0) {
        return INVALID_VALUE;
    }
    try {
        static_cast<const shim::Kernel*>(function)->run(parameters, {grid_x, grid_y}, block_x, {});
    } catch (const std::exception&) {
        return LAUNCH_FAILED;
    }
    return SUCCESS;
}

Result cuMemAlloc_v2(unsigned long long* to, std::size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    *to = reinterpret_cast<unsigned long long>(shim::guarded_memory(bytes));
    return SUCCESS;
}

Result cuMemFree_v2(unsigned long long) { return SUCCESS; }

Result cuMemHostAlloc(void** to, std::size_t bytes, unsigned) {
    *to = shim::guarded_memory(bytes);
    return SUCCESS;
}

Result cuMemFreeHost(void*) { return SUCCESS; }

Result cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t bytes, void*) {
    std::memset(address(to), value, bytes);
    return SUCCESS;
}

Result cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, void*) {
    std::memcpy(address(to), from, bytes);
    return SUCCESS;
}

Result cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, void*) {
    std::memcpy(to, address(from), bytes);
    return SUCCESS;
}

Result cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, std::size_t bytes,
                            void*) {
    std::memcpy(address(to), address(from), bytes);
    return SUCCESS;
}

Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    *free = *total = 1u << 30;
    return SUCCESS;
}

Result cuStreamSynchronize(void*) { return SUCCESS; }
Result cuStreamWaitEvent(void*, void*, unsigned) { return SUCCESS; }

Result cuEventCreate(void** to, unsigned) {
    *to = &event;
    return SUCCESS;
}

Result cuEventRecord(void*, void*) { return SUCCESS; }
Result cuEventSynchronize(void*) { return SUCCESS; }
Result cuEventDestroy_v2(void*) { return SUCCESS; }

Result cuEventElapsedTime(float* milliseconds, void*, void*) {
    *milliseconds = 1e-3f;
    return SUCCESS;
}

Result cuGetErrorName(Result, const char** text) {
    *text = "SHIM";
    return SUCCESS;
}

Result cuGetErrorString(Result, const char** text) {
    *text = "the shim refused";
    return SUCCESS;
}

}  // extern "C"
