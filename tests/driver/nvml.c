/* The NVML symbols of the tests' driver library. Most are one row: a shape, a name, and a key of the state. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

/* ---- shapes --------------------------------------------------------------------------------- */

#define UINT(name, key)                                                                \
    API int name(struct handle *handle, unsigned *out) {                               \
        ENTER_DEVICE(name, handle);                                                    \
        return get_uint(device, key, out);                                             \
    }
#define ULL(name, key)                                                                 \
    API int name(struct handle *handle, unsigned long long *out) {                     \
        ENTER_DEVICE(name, handle);                                                    \
        return get_number(device, key, out);                                           \
    }
#define TEXT(name, key)                                                                \
    API int name(struct handle *handle, char *out, unsigned size) {                    \
        ENTER_DEVICE(name, handle);                                                    \
        return get_text(device, key, out, size);                                       \
    }
#define PAIR(name, one, other)                                                         \
    API int name(struct handle *handle, unsigned *first, unsigned *second) {           \
        ENTER_DEVICE(name, handle);                                                    \
        code = get_uint(device, one, first);                                           \
        return code == SUCCESS ? get_uint(device, other, second) : code;               \
    }
/* One of several numbers, chosen by the second argument. */
#define CHOICE(name, ...)                                                              \
    API int name(struct handle *handle, unsigned which, unsigned *out) {               \
        static const char *const keys[] = {__VA_ARGS__};                               \
        ENTER_DEVICE(name, handle);                                                    \
        return which < sizeof keys / sizeof *keys ? get_uint(device, keys[which], out) \
                                                  : INVALID_ARGUMENT;                  \
    }
#define SYSTEM_TEXT(name, key)                                                         \
    API int name(char *out, unsigned size) {                                           \
        ENTER(name, -1);                                                               \
        return get_text(system_line(), key, out, size);                                \
    }
#define SYSTEM_UINT(name, key)                                                         \
    API int name(unsigned *out) {                                                      \
        ENTER(name, -1);                                                               \
        return get_uint(system_line(), key, out);                                      \
    }
#define INIT(name, parameters)                                                         \
    API int name parameters {                                                          \
        ENTER(name, -1, .before_init = 1);                                             \
        initialised++;                                                                 \
        return SUCCESS;                                                                \
    }

/* ---- the library and the system ------------------------------------------------------------- */

INIT(nvmlInit, (void))
INIT(nvmlInit_v2, (void))
INIT(nvmlInitWithFlags, (unsigned flags __attribute__((unused))))

API int nvmlShutdown(void) {
    ENTER(nvmlShutdown, -1);
    initialised--;
    return SUCCESS;
}

static const char *explain(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 13: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "An error of the tests' driver library";
    }
}

API const char *nvmlErrorString(int result) {
    SYMBOL(nvmlErrorString, .before_init = 1);
    int code __attribute__((cleanup(leave))) = enter(&symbol, -1);
    return explain(result);
}

SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml")
SYSTEM_UINT(nvmlSystemGetCudaDriverVersion, "cuda")
SYSTEM_UINT(nvmlSystemGetCudaDriverVersion_v2, "cuda")

API int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    ENTER(nvmlSystemGetProcessName, -1);
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NOT_FOUND;
    size_t got = size > 0 ? fread(out, 1, size - 1, file) : 0;
    fclose(file);
    if (size > 0)
        out[got] = '\0';
    return SUCCESS;
}

/* ---- handles -------------------------------------------------------------------------------- */

API int nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(nvmlDeviceGetCount_v2, -1);
    *out = (unsigned)gpu_count();
    return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **out) {
    ENTER(nvmlDeviceGetHandleByIndex_v2, index < MAX_GPUS ? (int)index : -1);
    if (index >= (unsigned)gpu_count())
        return INVALID_ARGUMENT;
    *out = gpu_handle((int)index);
    return SUCCESS;
}

static int has_uuid(const struct line *line, const char *uuid) {
    char own[96];
    return get_text(line, "uuid", own, sizeof own) == SUCCESS && strcmp(own, uuid) == 0;
}

struct bus {
    unsigned domain, bus, device;
};

static int parse_bus(const char *text, struct bus *out) {
    return sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->device) == 3;
}

static int has_bus(const struct line *line, const char *text) {
    char own[32];
    struct bus one, other;
    return get_text(line, "bus", own, sizeof own) == SUCCESS && parse_bus(own, &one) && parse_bus(text, &other) &&
           memcmp(&one, &other, sizeof one) == 0;
}

#define LOOKUP(name, matches)                                                          \
    API int name(const char *text, struct handle **out) {                              \
        struct handle *found = find_handle(matches, text);                             \
        ENTER(name, found == NULL ? -1 : found->gpu);                                  \
        if (found == NULL)                                                             \
            return NOT_FOUND;                                                          \
        *out = found;                                                                  \
        return SUCCESS;                                                                \
    }
LOOKUP(nvmlDeviceGetHandleByUUID, has_uuid)
LOOKUP(nvmlDeviceGetHandleByPciBusId_v2, has_bus)

API int nvmlDeviceGetIndex(struct handle *handle, unsigned *out) {
    ENTER_DEVICE(nvmlDeviceGetIndex, handle);
    *out = (unsigned)(handle->mig < 0 ? handle->gpu : handle->mig);
    return SUCCESS;
}

/* ---- MIG ------------------------------------------------------------------------------------ */

PAIR(nvmlDeviceGetMigMode, "mig_mode", "mig_pending")
UINT(nvmlDeviceGetMaxMigDeviceCount, "mig_max")
UINT(nvmlDeviceGetGpuInstanceId, "gi")
UINT(nvmlDeviceGetComputeInstanceId, "ci")

API int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *handle, unsigned index, struct handle **out) {
    ENTER_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex, handle);
    if (index >= MAX_MIGS)
        return INVALID_ARGUMENT;
    *out = mig_handle(handle, index);
    return device_line(*out) == NULL ? NOT_FOUND : SUCCESS;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *handle, struct handle **out) {
    ENTER_DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle);
    if (handle->mig < 0)
        return INVALID_ARGUMENT;
    *out = parent_handle(handle);
    return SUCCESS;
}

API int nvmlDeviceIsMigDeviceHandle(struct handle *handle, unsigned *out) {
    ENTER_DEVICE(nvmlDeviceIsMigDeviceHandle, handle);
    *out = handle->mig >= 0;
    return SUCCESS;
}

struct attributes {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

API int nvmlDeviceGetAttributes_v2(struct handle *handle, struct attributes *out) {
    ENTER_DEVICE(nvmlDeviceGetAttributes_v2, handle);
    if (handle->mig < 0)
        return NOT_SUPPORTED;
    *out = (struct attributes){.memory_mib = number_or(device, "memory_total", 0) >> 20, .copy_engines = 1};
    out->multiprocessors = (unsigned)number_or(device, "multiprocessors", 0);
    out->gpu_slices = (unsigned)number_or(device, "gpu_slices", 1);
    out->compute_slices = (unsigned)number_or(device, "compute_slices", 1);
    return SUCCESS;
}

/* ---- figures -------------------------------------------------------------------------------- */

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
UINT(nvmlDeviceGetMinorNumber, "minor")
UINT(nvmlDeviceGetBrand, "brand")
UINT(nvmlDeviceGetArchitecture, "architecture")
PAIR(nvmlDeviceGetCudaComputeCapability, "cuda_major", "cuda_minor")
UINT(nvmlDeviceGetNumGpuCores, "cores")

PAIR(nvmlDeviceGetEncoderUtilization, "util_encoder", "util_period")
PAIR(nvmlDeviceGetDecoderUtilization, "util_decoder", "util_period")
PAIR(nvmlDeviceGetJpgUtilization, "util_jpeg", "util_period")
PAIR(nvmlDeviceGetOfaUtilization, "util_ofa", "util_period")

API int nvmlDeviceGetUtilizationRates(struct handle *handle, unsigned out[2]) {
    ENTER_DEVICE(nvmlDeviceGetUtilizationRates, handle);
    code = get_uint(device, "util_gpu", &out[0]);
    return code == SUCCESS ? get_uint(device, "util_memory", &out[1]) : code;
}

CHOICE(nvmlDeviceGetTemperature, "temperature")
CHOICE(nvmlDeviceGetTemperatureThreshold, "temp_shutdown", "temp_slowdown", "temp_memory_max", "temp_gpu_max")
UINT(nvmlDeviceGetFanSpeed, "fan")
CHOICE(nvmlDeviceGetFanSpeed_v2, "fan", "fan", "fan", "fan")
UINT(nvmlDeviceGetNumFans, "fans")

UINT(nvmlDeviceGetPowerUsage, "power")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UINT(nvmlDeviceGetPowerManagementLimit, "power_limit_set")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_limit_min", "power_limit_max")
ULL(nvmlDeviceGetTotalEnergyConsumption, "energy")

CHOICE(nvmlDeviceGetClockInfo, "clock_graphics", "clock_sm", "clock_memory", "clock_video")
CHOICE(nvmlDeviceGetMaxClockInfo, "clock_graphics_max", "clock_sm_max", "clock_memory_max", "clock_video_max")
UINT(nvmlDeviceGetPerformanceState, "pstate")
UINT(nvmlDeviceGetPowerState, "pstate")
ULL(nvmlDeviceGetCurrentClocksEventReasons, "clock_reasons")
ULL(nvmlDeviceGetCurrentClocksThrottleReasons, "clock_reasons")
ULL(nvmlDeviceGetSupportedClocksEventReasons, "clock_reasons_supported")
ULL(nvmlDeviceGetSupportedClocksThrottleReasons, "clock_reasons_supported")

CHOICE(nvmlDeviceGetPcieThroughput, "pcie_tx", "pcie_rx")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")

/* `nvlinks` links, of which the first `nvlinks_active` are active; beyond 18 there is none on any GPU. */
API int nvmlDeviceGetNvLinkState(struct handle *handle, unsigned link, unsigned *out) {
    ENTER_DEVICE(nvmlDeviceGetNvLinkState, handle);
    unsigned links = 0, active = 0;
    if (link >= 18)
        return INVALID_ARGUMENT;
    code = get_uint(device, "nvlinks", &links);
    if (code == SUCCESS)
        code = get_uint(device, "nvlinks_active", &active);
    *out = link < active;
    return code != SUCCESS ? code : link < links ? SUCCESS : NOT_SUPPORTED;
}

PAIR(nvmlDeviceGetEccMode, "ecc_mode", "ecc_pending")
UINT(nvmlDeviceGetPersistenceMode, "persistence")
UINT(nvmlDeviceGetComputeMode, "compute_mode")
UINT(nvmlDeviceGetDisplayActive, "display_active")
UINT(nvmlDeviceGetDisplayMode, "display_mode")

/* No key: not on Linux, or not on these devices. */
PAIR(nvmlDeviceGetDriverModel, "-", "-")
PAIR(nvmlDeviceGetDriverModel_v2, "-", "-")
UINT(nvmlDeviceGetConfComputeMemSizeInfo, "-")
UINT(nvmlDeviceGetRunningProcessDetailList, "-")

API int nvmlDeviceGetTotalEccErrors(struct handle *handle, unsigned type, unsigned counter, unsigned long long *out) {
    static const char *const keys[2][2] = {{"ecc_corrected_volatile", "ecc_corrected_aggregate"},
                                           {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"}};
    ENTER_DEVICE(nvmlDeviceGetTotalEccErrors, handle);
    return type < 2 && counter < 2 ? get_number(device, keys[type][counter], out) : INVALID_ARGUMENT;
}

API int nvmlDeviceGetRemappedRows(struct handle *handle, unsigned *corrected, unsigned *uncorrected,
                                  unsigned *pending, unsigned *failed) {
    ENTER_DEVICE(nvmlDeviceGetRemappedRows, handle);
    code = get_uint(device, "remapped_corrected", corrected);
    if (code == SUCCESS)
        code = get_uint(device, "remapped_uncorrected", uncorrected);
    if (code == SUCCESS)
        code = get_uint(device, "remap_pending", pending);
    return code == SUCCESS ? get_uint(device, "remap_failed", failed) : code;
}

struct temperature {
    unsigned version, sensor;
    int degrees;
};

API int nvmlDeviceGetTemperatureV(struct handle *handle, struct temperature *out) {
    ENTER_DEVICE(nvmlDeviceGetTemperatureV, handle);
    if (out->version != 0x0100000C)
        return VERSION_MISMATCH;
    return out->sensor == 0 ? get_uint(device, "temperature", (unsigned *)&out->degrees) : INVALID_ARGUMENT;
}

struct pci {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32]; /* in _v2 these are reserved words, half as many: id is left out there */
};

static int get_pci(const struct line *device, struct pci *out) {
    struct bus bus;
    *out = (struct pci){.device_id = (unsigned)number_or(device, "pci_device", 0),
                        .subsystem_id = (unsigned)number_or(device, "pci_subsystem", 0)};
    int code = get_text(device, "bus", out->id, sizeof out->id);
    if (code != SUCCESS || !parse_bus(out->id, &bus))
        return code == SUCCESS ? NOT_SUPPORTED : code;
    out->domain = bus.domain, out->bus = bus.bus, out->device = bus.device;
    snprintf(out->legacy_id, sizeof out->legacy_id, "%04X:%02X:%02X.0", bus.domain & 0xFFFF, bus.bus & 0xFF,
             bus.device & 0xFF);
    return SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(struct handle *handle, struct pci *out) {
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v3, handle);
    return get_pci(device, out);
}

API int nvmlDeviceGetPciInfo_v2(struct handle *handle, void *out) {
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v2, handle);
    struct pci pci;
    code = get_pci(device, &pci);
    if (code == SUCCESS)
        memcpy(out, &pci, offsetof(struct pci, id));
    return code;
}
