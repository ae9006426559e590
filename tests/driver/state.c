/* The state file, the faults and the counters of the tests' driver library. See nvml.h and __init__.py. */
#include "nvml.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct handle gpu_handles[MAX_HANDLES];
static struct handle mig_handles[MAX_HANDLES][MAX_MIGS];
static char *owners[MAX_HANDLES]; /* whose handle it is: the UUID, as it stands in the state file */
int initialised;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the state file ------------------------------------------------------------------------- */

static struct {
    struct stat seen; /* what the file was when it was read */
    char *text;       /* its bytes, cut into words in place */
    char **words;
    struct line *lines;
    int count;
    int loaded;
} state;

/* What a GPU is known by: its UUID, or its address where it has none. */
static const char *owner(const struct line *gpu) {
    const char *uuid = value_of(gpu, "uuid"), *bus = value_of(gpu, "bus");
    return uuid != NULL && *uuid != '!' ? uuid : bus != NULL ? bus : "";
}

static char *read_all(int file, size_t size) {
    char *text = malloc(size + 1);
    size_t have = 0;
    ssize_t got = 1;
    while (text != NULL && have < size && got > 0) {
        got = read(file, text + have, size - have);
        have += got > 0 ? (size_t)got : 0;
    }
    if (text != NULL)
        text[have] = '\0';
    return text;
}

/* Cuts the text into lines of words. Every line ends in a newline; a word has no space in it. */
static void parse(char *text) {
    size_t words = 1, lines = 1;
    for (const char *at = text; *at != '\0'; at++) {
        words += *at == ' ' || *at == '\n';
        lines += *at == '\n';
    }
    free(state.text);
    free(state.words);
    free(state.lines);
    state.text = text;
    state.words = calloc(words, sizeof *state.words);
    state.lines = calloc(lines, sizeof *state.lines);
    state.count = 0;
    char **next = state.words, *rest = text, *row;
    while ((row = strsep(&rest, "\n")) != NULL) {
        struct line *line = &state.lines[state.count];
        char *word;
        line->words = next;
        while ((word = strsep(&row, " ")) != NULL)
            if (*word != '\0')
                *next++ = word;
        line->count = (int)(next - line->words);
        if (line->count == 0 || line->words[0][0] == '#')
            continue;
        line->kind = line->words[0];
        line->gpu = (int)number_or(line, "gpu", -1ULL);
        state.count++;
    }
}

/* Lets every handle know where its GPU is listed now. */
static void place_handles(void) {
    for (int n = 0; n < MAX_HANDLES && owners[n] != NULL; n++) {
        const struct line *gpu = NULL;
        int place = -1;
        for (int at = 0; place < 0 && (gpu = next_line(gpu, "gpu", -1)) != NULL; at++)
            if (strcmp(owner(gpu), owners[n]) == 0)
                place = at;
        gpu_handles[n].gpu = place;
        for (int mig = 0; mig < MAX_MIGS; mig++)
            mig_handles[n][mig].gpu = place;
    }
}

/* Reads the file again when it is not the one that was read last. Needs the lock. */
static void refresh(void) {
    const char *path = getenv("GPUWATCH_TEST_DRIVER");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0)
        return;
    if (state.loaded && now.st_ino == state.seen.st_ino && now.st_size == state.seen.st_size &&
        now.st_mtim.tv_sec == state.seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == state.seen.st_mtim.tv_nsec)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    char *text = fstat(file, &now) == 0 ? read_all(file, (size_t)now.st_size) : NULL;
    close(file);
    if (text == NULL)
        return;
    parse(text);
    state.seen = now;
    state.loaded = 1;
    place_handles();
}

const struct line *next_line(const struct line *before, const char *kind, int gpu) {
    const struct line *end = state.lines + state.count;
    for (const struct line *line = before == NULL ? state.lines : before + 1; line < end; line++)
        if (strcmp(line->kind, kind) == 0 && (gpu < 0 || line->gpu == gpu))
            return line;
    return NULL;
}

static const struct line *nth_line(const char *kind, int gpu, int n) {
    const struct line *line = NULL;
    do
        line = next_line(line, kind, gpu);
    while (line != NULL && n-- > 0);
    return line;
}

int gpu_count(void) {
    int count = 0;
    for (const struct line *gpu = NULL; (gpu = next_line(gpu, "gpu", -1)) != NULL;)
        count++;
    return count < MAX_GPUS ? count : MAX_GPUS;
}

const struct line *system_line(void) {
    return next_line(NULL, "system", -1);
}

int place_of(const struct handle *handle) {
    pthread_mutex_lock(&lock);
    refresh();
    int place = handle->gpu;
    pthread_mutex_unlock(&lock);
    return place;
}

struct handle *gpu_handle(int place) {
    const char *name = owner(nth_line("gpu", -1, place));
    int n = 0;
    while (n < MAX_HANDLES && owners[n] != NULL && strcmp(owners[n], name) != 0)
        n++;
    if (n == MAX_HANDLES)
        abort(); /* a test that needs more has MAX_HANDLES to raise */
    if (owners[n] == NULL)
        owners[n] = strdup(name);
    place_handles();
    return &gpu_handles[n];
}

struct handle *mig_handle(const struct handle *gpu, unsigned mig) {
    return &mig_handles[gpu - gpu_handles][mig];
}

struct handle *parent_handle(const struct handle *mig) {
    return &gpu_handles[(mig - &mig_handles[0][0]) / MAX_MIGS];
}

const struct line *device_line(const struct handle *handle) {
    if (handle->gpu < 0)
        return NULL;
    return handle->mig < 0 ? nth_line("gpu", -1, handle->gpu) : nth_line("mig", handle->gpu, handle->mig);
}

struct handle *find_handle(int (*matches)(const struct line *line, const char *text), const char *text) {
    struct handle *found = NULL;
    pthread_mutex_lock(&lock);
    refresh();
    for (int gpu = 0; gpu < gpu_count() && found == NULL; gpu++) {
        if (matches(nth_line("gpu", -1, gpu), text))
            found = gpu_handle(gpu);
        const struct line *mig = NULL;
        for (int n = 0; n < MAX_MIGS && found == NULL && (mig = next_line(mig, "mig", gpu)) != NULL; n++)
            if (matches(mig, text))
                found = mig_handle(gpu_handle(gpu), (unsigned)n);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- values --------------------------------------------------------------------------------- */

const char *value_of(const struct line *line, const char *key) {
    size_t length = strlen(key);
    for (int n = 1; line != NULL && n < line->count; n++)
        if (strncmp(line->words[n], key, length) == 0 && line->words[n][length] == '=')
            return line->words[n] + length + 1;
    return NULL;
}

int get_number(const struct line *line, const char *key, unsigned long long *out) {
    const char *value = value_of(line, key);
    if (value == NULL)
        return NOT_SUPPORTED;
    if (*value == '!')
        return atoi(value + 1);
    *out = strtoull(value, NULL, 0);
    return SUCCESS;
}

int get_uint(const struct line *line, const char *key, unsigned *out) {
    unsigned long long number = 0;
    int code = get_number(line, key, &number);
    if (code == SUCCESS)
        *out = (unsigned)number;
    return code;
}

unsigned long long number_or(const struct line *line, const char *key, unsigned long long otherwise) {
    unsigned long long number = 0;
    return get_number(line, key, &number) == SUCCESS ? number : otherwise;
}

/* Text is percent-encoded in the file, so that a name may have any byte in it. */
int get_text(const struct line *line, const char *key, char *out, unsigned size) {
    const char *value = value_of(line, key);
    if (value == NULL)
        return NOT_SUPPORTED;
    if (*value == '!')
        return atoi(value + 1);
    unsigned used = 0;
    for (; *value != '\0'; value++, used++) {
        unsigned byte = (unsigned char)*value;
        if (byte == '%' && sscanf(value + 1, "%2x", &byte) == 1)
            value += 2;
        if (used + 1 >= size)
            return INSUFFICIENT_SIZE;
        out[used] = (char)byte;
    }
    if (size == 0)
        return INSUFFICIENT_SIZE;
    out[used] = '\0';
    return SUCCESS;
}

/* ---- calls and faults ----------------------------------------------------------------------- */

extern struct symbol *__start_nvml_symbols[] __attribute__((visibility("hidden")));
extern struct symbol *__stop_nvml_symbols[] __attribute__((visibility("hidden")));

/* One record of the counters file; the Python side unpacks the same. */
struct record {
    char name[64];
    uint64_t calls;
    uint64_t calls_on[MAX_GPUS];
};
static struct record *records; /* in the order of the symbols; NULL where no file was asked for */

static int record_of(const struct symbol *symbol) {
    int n = 0;
    while (__start_nvml_symbols[n] != symbol)
        n++;
    return n;
}

__attribute__((constructor)) static void set_up(void) {
    for (int n = 0; n < MAX_HANDLES; n++) {
        gpu_handles[n] = (struct handle){-1, -1};
        for (int mig = 0; mig < MAX_MIGS; mig++)
            mig_handles[n][mig] = (struct handle){-1, mig};
    }
    const char *path = getenv("GPUWATCH_TEST_CALLS");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return;
    size_t count = (size_t)(__stop_nvml_symbols - __start_nvml_symbols), size = count * sizeof *records;
    void *map = MAP_FAILED;
    if (ftruncate(file, (off_t)size) == 0)
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map == MAP_FAILED)
        return;
    records = map;
    for (size_t n = 0; n < count; n++)
        strncpy(records[n].name, __start_nvml_symbols[n]->name, sizeof records[n].name - 1);
}

static uint64_t add(uint64_t *counter) {
    return __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

/* Whether a fault line is about this call. Its second word is `<symbol>`, `<symbol>@<gpu>`, `*` or `*@<gpu>`. */
static int concerns(const struct line *fault, const struct symbol *symbol, int gpu, uint64_t all, uint64_t here) {
    const char *name = fault->words[1], *at = strchr(name, '@');
    size_t length = at == NULL ? strlen(name) : (size_t)(at - name);
    if (at != NULL && atoi(at + 1) != gpu)
        return 0;
    if (strncmp(name, "*", length) != 0 && (strncmp(name, symbol->name, length) != 0 || symbol->name[length] != '\0'))
        return 0;
    uint64_t call = at == NULL ? all : here;
    return call <= number_or(fault, "ok_after", -1ULL);
}

static int has_word(const struct line *line, const char *word) {
    for (int n = 2; n < line->count; n++)
        if (strcmp(line->words[n], word) == 0)
            return 1;
    return 0;
}

/* Plays what a call must suffer, with the lock let go: a call that hangs holds up no other thread. */
static void suffer(uint64_t sleep_ms, int segv, int hang) {
    pthread_mutex_unlock(&lock);
    struct timespec rest = {(time_t)(sleep_ms / 1000), (long)(sleep_ms % 1000) * 1000000};
    while (sleep_ms > 0 && nanosleep(&rest, &rest) != 0)
        ;
    if (segv) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    while (hang)
        pause();
    pthread_mutex_lock(&lock);
    refresh();
}

void rest(uint64_t ms) {
    suffer(ms, 0, 0);
}

int enter(struct symbol *symbol, int gpu) {
    int known = gpu >= 0 && gpu < MAX_GPUS, code = SUCCESS, segv = 0, hang = 0;
    uint64_t all = add(&symbol->calls), here = known ? add(&symbol->calls_on[gpu]) : 0, sleep_ms = 0;
    if (records != NULL) {
        struct record *record = &records[record_of(symbol)];
        add(&record->calls);
        if (known)
            add(&record->calls_on[gpu]);
    }
    pthread_mutex_lock(&lock);
    refresh();
    for (const struct line *fault = NULL; (fault = next_line(fault, "fault", -1)) != NULL;) {
        if (fault->count < 3 || !concerns(fault, symbol, gpu, all, here))
            continue;
        sleep_ms += number_or(fault, "sleep", 0);
        segv |= has_word(fault, "segv");
        hang |= has_word(fault, "hang");
        if (code == SUCCESS)
            code = has_word(fault, "grow")    ? GROW
                   : has_word(fault, "empty") ? EMPTY
                                              : (int)number_or(fault, "ret", SUCCESS);
    }
    if (sleep_ms > 0 || segv || hang)
        suffer(sleep_ms, segv, hang);
    if (code == SUCCESS && !state.loaded)
        return DRIVER_NOT_LOADED;
    if (code == SUCCESS && !symbol->before_init && initialised == 0)
        return UNINITIALIZED;
    return code;
}

void leave(int *code) {
    (void)code;
    pthread_mutex_unlock(&lock);
}
