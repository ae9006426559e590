/* A driver library for the tests: what the two halves of it know of each other.
 *
 * state.c reads the state file, counts the calls and plays the faults; nvml.c, lists.c and events.c have the symbols.
 * The declarations are our own. Their layouts are NVML's, as the binding `pynvml` spells them in ctypes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 32
#define MAX_HANDLES 64 /* GPUs that one program has seen: more than are there at any time */
#define MAX_MIGS 8
#define NONE 0xFFFFFFFFu /* an instance id of a process that runs in no instance */

enum code {
    GROW = -2,  /* not NVML's: a list answers that it has one more entry than the caller has room for */
    EMPTY = -1, /* not NVML's: a list answers that it is empty */
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};

/* One line of the state file: its first word, then `key=value` words. */
struct line {
    const char *kind;
    char **words;
    int count;
    int gpu; /* the value of gpu=, or -1 */
};

/* What a caller holds as nvmlDevice_t. They live as long as the library. That of a GPU stays with it, wherever the
 * driver lists it; that of a MIG device is the one of its place, and means another device when the GPU is cut anew. */
struct handle {
    int gpu; /* NVML's index of the GPU now, or -1 when it is not listed; read it by place_of() */
    int mig; /* which of the GPU's MIG devices, or -1 for the GPU itself */
};

/* One NVML function: its calls in this process, in all and by GPU. */
struct symbol {
    const char *name;
    int before_init; /* may be called before nvmlInit */
    uint64_t calls;
    uint64_t calls_on[MAX_GPUS];
};

extern int initialised; /* as many times as nvmlInit was called and nvmlShutdown was not */

/* Counts the call, plays its faults, and returns with the lock held whatever the answer is. */
int enter(struct symbol *symbol, int gpu);
void leave(int *code);

/* Lets go of the lock for so long, and sees what the state file says then; only between enter() and leave(). */
void rest(uint64_t ms);

/* NVML's index of a handle's GPU by the state file as it is now, or -1; before enter(). */
int place_of(const struct handle *handle);

/* The state; only between enter() and leave(), except find_handle(), which does both. */
int gpu_count(void);
const struct line *system_line(void);
const struct line *device_line(const struct handle *handle);
const struct line *next_line(const struct line *before, const char *kind, int gpu);
struct handle *gpu_handle(int place);
struct handle *mig_handle(const struct handle *gpu, unsigned mig);
struct handle *parent_handle(const struct handle *mig);
struct handle *find_handle(int (*matches)(const struct line *line, const char *text), const char *text);

/* The value of one key. A key that is absent is NOT_SUPPORTED; a value `!15` is the return code 15. */
const char *value_of(const struct line *line, const char *key);
int get_number(const struct line *line, const char *key, unsigned long long *out);
int get_uint(const struct line *line, const char *key, unsigned *out);
int get_text(const struct line *line, const char *key, char *out, unsigned size);
unsigned long long number_or(const struct line *line, const char *key, unsigned long long otherwise);

/* The start of every function: its counter, its entry in the list of symbols, and its faults. */
#define SYMBOL(name_, ...)                                                             \
    static struct symbol symbol = {.name = #name_, __VA_ARGS__};                       \
    static struct symbol *listed __attribute__((section("nvml_symbols"), used)) = &symbol

#define ENTER(name_, gpu_, ...)                                                        \
    SYMBOL(name_, __VA_ARGS__);                                                        \
    int code __attribute__((cleanup(leave))) = enter(&symbol, gpu_);                   \
    if (code > SUCCESS)                                                                \
        return code

#define ENTER_DEVICE(name_, handle_)                                                   \
    ENTER(name_, place_of(handle_));                                                   \
    const struct line *device = device_line(handle_);                                  \
    if (device == NULL)                                                                \
        return (handle_)->mig < 0 ? GPU_IS_LOST : INVALID_ARGUMENT
