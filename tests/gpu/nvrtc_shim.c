/* Stands before the real NVRTC and spoils what is compiled, so that failures happen for real on a real device.
 *
 *   gcc -shared -fPIC -o libnvrtc.so -Wl,-soname,libnvrtc.so nvrtc_shim.c -ldl
 *
 * Without a version in its name: that is what this program asks for first, while cuDNN asks for the real one by version.
 *
 * PLANFORGE_TEST_NVRTC  path of the real library
 * PLANFORGE_TEST_SPOIL  file with one word, read at every compilation. error: no source compiles; fault: every kernel
 *                       first reads an address that is none; anything else: nothing is spoilt
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef void *Program;

static void *real(const char *name) {
    static void *library;
    if (!library) {
        library = dlopen(getenv("PLANFORGE_TEST_NVRTC"), RTLD_NOW | RTLD_LOCAL);
        if (!library) abort();
    }
    return dlsym(library, name);
}

static int spoil(const char *how) {
    char word[16] = "";
    const char *path = getenv("PLANFORGE_TEST_SPOIL");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (fscanf(file, "%15s", word) != 1) word[0] = 0;
        fclose(file);
    }
    return !strcmp(word, how);
}

#define FORWARD(name, types, args)                          \
    Status name types {                                     \
        Status (*function) types = real(#name);             \
        return function args;                               \
    }

FORWARD(nvrtcVersion, (int *a, int *b), (a, b))
FORWARD(nvrtcGetNumSupportedArchs, (int *a), (a))
FORWARD(nvrtcGetSupportedArchs, (int *a), (a))
FORWARD(nvrtcDestroyProgram, (Program *a), (a))
FORWARD(nvrtcCompileProgram, (Program a, int b, const char *const *c), (a, b, c))
FORWARD(nvrtcGetPTXSize, (Program a, size_t *b), (a, b))
FORWARD(nvrtcGetPTX, (Program a, char *b), (a, b))
FORWARD(nvrtcGetCUBINSize, (Program a, size_t *b), (a, b))
FORWARD(nvrtcGetCUBIN, (Program a, char *b), (a, b))
FORWARD(nvrtcGetProgramLogSize, (Program a, size_t *b), (a, b))
FORWARD(nvrtcGetProgramLog, (Program a, char *b), (a, b))

const char *nvrtcGetErrorString(Status status) {
    const char *(*function)(Status) = real("nvrtcGetErrorString");
    return function(status);
}

/* The text with `insert` after the brace that opens the last `__global__` function. */
static char *spoiled(const char *text, const char *insert) {
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, "__global__")); at++) last = at;
    const char *brace = last ? strchr(last, '{') : NULL;
    size_t head = brace ? (size_t)(brace + 1 - text) : strlen(text);
    char *copy = malloc(strlen(text) + strlen(insert) + 1);
    if (!copy) abort();
    memcpy(copy, text, head);
    strcpy(copy + head, insert);
    strcat(copy, text + head);
    return copy;
}

Status nvrtcCreateProgram(Program *program, const char *text, const char *name, int headers,
                          const char *const *sources, const char *const *names) {
    Status (*function)(Program *, const char *, const char *, int, const char *const *, const char *const *) =
        real("nvrtcCreateProgram");
    const char *insert = spoil("error") ? " this_does_not_compile(); " :
                         spoil("fault") ? " if (*(volatile int*)16 == 42) return; " : "";
    char *changed = spoiled(text, insert);
    Status status = function(program, changed, name, headers, sources, names);
    free(changed);
    return status;
}
