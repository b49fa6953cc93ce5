/* Takes ranges as a profiler does, and writes each beginning and end as a line to the file that NVTX_RECORD names:
 * "push NAME" and "pop", indented by how deep the range lies. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*function)(void);
typedef const void *(*get_table)(uint32_t);
struct callbacks {
    size_t bytes;
    int (*module)(uint32_t module, function ***table, unsigned *places);
};
enum { CALLBACKS = 1, CORE = 1, RANGE_PUSH_A = 9, RANGE_POP = 11, CORE_PLACES = 16 };

static FILE *out;
static __thread int depth;

static int push(const char *name) {
    fprintf(out, "%*spush %s\n", 2 * depth, "", name);
    fflush(out);
    return depth++;
}

static int pop(void) {
    depth--;
    fprintf(out, "%*spop\n", 2 * depth, "");
    fflush(out);
    return depth;
}

int InitializeInjectionNvtx2(get_table get) {
    const char *path = getenv("NVTX_RECORD");
    const struct callbacks *callbacks = get(CALLBACKS);
    function **table = NULL;
    unsigned places = 0;
    if (!path || !callbacks || callbacks->bytes < sizeof *callbacks) return 0;
    if (!callbacks->module(CORE, &table, &places) || places < CORE_PLACES) return 0;
    /* Every module of the agreement has a table; there is no other. */
    for (uint32_t module = 1; module <= 6; module++)
        if (!callbacks->module(module, NULL, NULL)) return 0;
    if (callbacks->module(0, NULL, NULL) || callbacks->module(7, NULL, NULL)) return 0;
    if (table[0] || !table[1] || !table[places - 1] || table[places]) return 0;
    out = fopen(path, "a");
    if (!out) return 0;
    *table[RANGE_PUSH_A] = (function)push;
    *table[RANGE_POP] = (function)pop;
    return 1;
}
