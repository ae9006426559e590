/* The NVML symbols of events. What happened stands in the state file, in the order in which it happened:
 *
 *     xid gpu=3 code=79 n=5
 *
 * Each program reads the file on its own. A registration remembers the greatest n that there was when it was made, and
 * then the n that it has delivered: nothing from before it, and nothing twice. A GPU that is registered twice with one
 * set is told of everything twice: NVIDIA does not say what happens then, so nobody may rely on it.
 */
#include "nvml.h"

#include <string.h>

#define MAX_SETS 16
#define MAX_REGISTRATIONS 64
#define XID 8 /* nvmlEventTypeXidCriticalError */

struct registration {
    struct handle *handle;
    unsigned long long types, seen;
};

/* What a caller holds as nvmlEventSet_t. They live as long as the library, so that one that was freed is recognised. */
struct event_set {
    int made;
    int count;
    struct registration registrations[MAX_REGISTRATIONS];
};

static struct event_set sets[MAX_SETS];

struct event {
    struct handle *device;
    unsigned long long type, data;
    unsigned gi, ci;
};

static int is_set(const struct event_set *set) {
    return set != NULL && set >= sets && set < sets + MAX_SETS && set->made;
}

API int nvmlEventSetCreate(struct event_set **out) {
    ENTER(nvmlEventSetCreate, -1);
    for (struct event_set *set = sets; set < sets + MAX_SETS; set++)
        if (!set->made) {
            *set = (struct event_set){.made = 1};
            *out = set;
            return SUCCESS;
        }
    return INSUFFICIENT_SIZE;
}

API int nvmlEventSetFree(struct event_set *set) {
    ENTER(nvmlEventSetFree, -1);
    if (!is_set(set))
        return INVALID_ARGUMENT;
    set->made = 0;
    return SUCCESS;
}

API int nvmlDeviceGetSupportedEventTypes(struct handle *handle, unsigned long long *out) {
    ENTER_DEVICE(nvmlDeviceGetSupportedEventTypes, handle);
    return get_number(device, "event_types", out);
}

static unsigned long long newest(void) {
    unsigned long long n = 0;
    for (const struct line *xid = NULL; (xid = next_line(xid, "xid", -1)) != NULL;)
        n = number_or(xid, "n", 0) > n ? number_or(xid, "n", 0) : n;
    return n;
}

API int nvmlDeviceRegisterEvents(struct handle *handle, unsigned long long types, struct event_set *set) {
    ENTER_DEVICE(nvmlDeviceRegisterEvents, handle);
    if (!is_set(set))
        return INVALID_ARGUMENT;
    if (types & ~number_or(device, "event_types", 0))
        return NOT_SUPPORTED;
    if (set->count == MAX_REGISTRATIONS)
        return INSUFFICIENT_SIZE;
    set->registrations[set->count++] = (struct registration){handle, types, newest()};
    return SUCCESS;
}

/* The oldest event that a registration of the set was not told of yet. */
static int next_event(struct event_set *set, struct event *out) {
    struct registration *whose = NULL;
    unsigned long long oldest = -1ULL;
    for (int n = 0; n < set->count; n++) {
        struct registration *one = &set->registrations[n];
        int place = one->handle->gpu;
        for (const struct line *xid = NULL; place >= 0 && (xid = next_line(xid, "xid", place)) != NULL;) {
            unsigned long long number = number_or(xid, "n", 0);
            if ((one->types & XID) == 0 || number <= one->seen || number >= oldest)
                continue;
            oldest = number;
            whose = one;
            *out = (struct event){one->handle, XID, number_or(xid, "code", 0), NONE, NONE};
        }
    }
    if (whose == NULL) { /* all is told: a GPU that moves up to another handle is not told of again */
        for (int n = 0; n < set->count; n++)
            set->registrations[n].seen = newest();
        return TIMEOUT;
    }
    whose->seen = oldest;
    return SUCCESS;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned timeout_ms) {
    ENTER(nvmlEventSetWait_v2, -1);
    if (!is_set(set) || out == NULL)
        return INVALID_ARGUMENT;
    while ((code = next_event(set, out)) == TIMEOUT && timeout_ms > 0) {
        unsigned step = timeout_ms < 5 ? timeout_ms : 5;
        rest(step);
        timeout_ms -= step;
    }
    return code;
}
