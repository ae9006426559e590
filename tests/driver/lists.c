/* The NVML symbols that fill structures and lists: memory, field values, processes and their utilization. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- memory --------------------------------------------------------------------------------- */

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

/* Memory in use is without the reserved part in _v2, and with it in _v1. */
static int get_memory(const struct line *device, struct memory_v2 *out) {
    int code = get_number(device, "memory_total", &out->total);
    if (code == SUCCESS)
        code = get_number(device, "memory_used", &out->used);
    out->reserved = number_or(device, "memory_reserved", 0);
    unsigned long long taken = out->used + out->reserved;
    out->free = number_or(device, "memory_free", out->total > taken ? out->total - taken : 0);
    return code;
}

API int nvmlDeviceGetMemoryInfo(struct handle *handle, struct memory *out) {
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo, handle);
    struct memory_v2 all = {0};
    code = get_memory(device, &all);
    if (code == SUCCESS)
        *out = (struct memory){all.total, all.free, all.used + all.reserved};
    return code;
}

API int nvmlDeviceGetMemoryInfo_v2(struct handle *handle, struct memory_v2 *out) {
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2, handle);
    if (out->version != 0x02000028)
        return VERSION_MISMATCH;
    return get_memory(device, out);
}

API int nvmlDeviceGetBAR1MemoryInfo(struct handle *handle, struct memory *out) {
    ENTER_DEVICE(nvmlDeviceGetBAR1MemoryInfo, handle);
    code = get_number(device, "bar1_total", &out->total);
    if (code == SUCCESS)
        code = get_number(device, "bar1_used", &out->used);
    out->free = out->total - out->used;
    return code;
}

/* ---- field values --------------------------------------------------------------------------- */

struct field {
    uint32_t id, scope;
    int64_t timestamp, latency;
    unsigned type;
    int code;
    unsigned long long value;
};

/* A field has the key `field_<id>`, or one of the keys that other calls have too. */
static int get_field(const struct line *device, uint32_t id, unsigned long long *out) {
    static const struct {
        uint32_t id;
        const char *key;
    } known[] = {
        {1, "ecc_mode"},
        {2, "ecc_pending"},
        {3, "ecc_corrected_volatile"},
        {4, "ecc_uncorrected_volatile"},
        {5, "ecc_corrected_aggregate"},
        {6, "ecc_uncorrected_aggregate"},
        {82, "temp_memory"},
        {83, "energy"},
        {185, "power"},
        {186, "power"},
        {187, "power_limit_min"},
        {188, "power_limit_max"},
        {189, "power_limit_default"},
        {190, "power_limit"},
    };
    char key[32];
    snprintf(key, sizeof key, "field_%u", id);
    int code = get_number(device, key, out);
    for (size_t n = 0; n < sizeof known / sizeof *known && code == NOT_SUPPORTED; n++)
        if (known[n].id == id)
            code = get_number(device, known[n].key, out);
    return code;
}

static unsigned long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

API int nvmlDeviceGetFieldValues(struct handle *handle, int count, struct field *fields) {
    ENTER_DEVICE(nvmlDeviceGetFieldValues, handle);
    for (int n = 0; n < count; n++) {
        fields[n].timestamp = (int64_t)now_us();
        fields[n].type = 3; /* unsigned long long */
        if ((fields[n].id == 138 || fields[n].id == 139) && fields[n].scope != 0xFFFFFFFFu) {
            fields[n].code = INVALID_ARGUMENT; /* the test's counters of NVLink are those of all links */
            continue;
        }
        fields[n].code = get_field(device, fields[n].id, &fields[n].value);
    }
    return SUCCESS;
}

/* ---- processes ------------------------------------------------------------------------------ */

struct process_v1 {
    unsigned pid;
    unsigned long long memory;
};

struct process { /* _v2 and _v3; it begins with all of _v1 */
    unsigned pid;
    unsigned long long memory;
    unsigned gi, ci;
};

/* Whether a list of n entries can be given now; else the answer, with the count that it has. */
static int has_room(int code, unsigned n, unsigned *count, const void *out) {
    if (code == GROW)
        n = *count + 1;
    if (code == EMPTY || n == 0) {
        *count = 0;
        return EMPTY;
    }
    int fits = *count >= n;
    *count = n;
    return !fits ? INSUFFICIENT_SIZE : out == NULL ? INVALID_ARGUMENT : SUCCESS;
}

static const struct line *next_process(const struct line *before, const struct handle *handle, char kind) {
    const struct line *mig = handle->mig < 0 ? NULL : device_line(handle);
    for (const struct line *line = before; (line = next_line(line, "proc", handle->gpu)) != NULL;) {
        const char *kinds = value_of(line, "kind");
        if (kinds == NULL || strchr(kinds, kind) == NULL)
            continue;
        if (mig == NULL || (number_or(line, "gi", NONE) == number_or(mig, "gi", NONE) &&
                            number_or(line, "ci", NONE) == number_or(mig, "ci", NONE)))
            return line;
    }
    return NULL;
}

static int list(const struct handle *handle, int code, char kind, unsigned *count, char *out, size_t size) {
    unsigned n = 0;
    for (const struct line *line = NULL; (line = next_process(line, handle, kind)) != NULL;)
        n++;
    code = has_room(code, n, count, out);
    if (code != SUCCESS)
        return code == EMPTY ? SUCCESS : code;
    for (const struct line *line = NULL; (line = next_process(line, handle, kind)) != NULL; out += size) {
        struct process process;
        memset(&process, 0, sizeof process);
        process.pid = (unsigned)number_or(line, "pid", 0);
        process.memory = number_or(line, "memory", -1ULL); /* none: not available */
        process.gi = (unsigned)number_or(line, "gi", NONE);
        process.ci = (unsigned)number_or(line, "ci", NONE);
        memcpy(out, &process, size);
    }
    return SUCCESS;
}

#define PROCESSES(name, kind, type)                                                    \
    API int name(struct handle *handle, unsigned *count, struct type *out) {           \
        ENTER_DEVICE(name, handle);                                                    \
        (void)device;                                                                  \
        return list(handle, code, kind, count, (char *)out, sizeof *out);              \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, 'C', process_v1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'C', process)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C', process)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 'G', process_v1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', process)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', process)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 'M', process_v1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', process)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', process)

/* ---- the utilization of processes ----------------------------------------------------------- */

#define PERIOD_US 166000ULL /* the driver takes about six samples a second */

struct sample {
    unsigned pid;
    unsigned long long timestamp;
    unsigned sm, memory, encoder, decoder;
};

/* The last sample of a process: the one of this period, or one of a given time or age. */
static unsigned long long sample_time(const struct line *process, unsigned long long now) {
    unsigned long long fixed, age;
    if (get_number(process, "ts", &fixed) == SUCCESS)
        return fixed;
    if (get_number(process, "age", &age) == SUCCESS)
        return now - age;
    return now - now % PERIOD_US;
}

/* Fills in the samples that are newer than last_seen, as many as there is room for, and counts them all. */
static unsigned samples(int gpu, unsigned long long now, unsigned long long last_seen, struct sample *out,
                        unsigned room) {
    unsigned n = 0;
    for (const struct line *line = NULL; (line = next_line(line, "proc", gpu)) != NULL;) {
        unsigned long long timestamp = sample_time(line, now);
        if (value_of(line, "sm") == NULL || timestamp <= last_seen)
            continue;
        if (n++ >= room)
            continue;
        *out++ = (struct sample){
            .pid = (unsigned)number_or(line, "pid", 0),
            .timestamp = timestamp,
            .sm = (unsigned)number_or(line, "sm", 0),
            .memory = (unsigned)number_or(line, "mem", 0),
            .encoder = (unsigned)number_or(line, "enc", 0),
            .decoder = (unsigned)number_or(line, "dec", 0),
        };
    }
    return n;
}

API int nvmlDeviceGetProcessUtilization(struct handle *handle, struct sample *out, unsigned *count,
                                        unsigned long long last_seen) {
    ENTER_DEVICE(nvmlDeviceGetProcessUtilization, handle);
    (void)device;
    unsigned long long now = now_us();
    unsigned n = samples(handle->gpu, now, last_seen, NULL, 0);
    if (n == 0 && code == SUCCESS)
        return NOT_FOUND;
    code = has_room(code, n, count, out);
    if (code == SUCCESS)
        samples(handle->gpu, now, last_seen, out, n);
    return code == EMPTY ? SUCCESS : code;
}
