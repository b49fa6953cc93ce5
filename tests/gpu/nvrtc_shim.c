/* Stands before the real NVRTC and spoils what is compiled, so that failures happen for real on a real device.
 *
 *   gcc -shared -fPIC -o SHIM/libnvrtc.so.13 -Wl,-soname,libnvrtc-shim.so nvrtc_shim.c -ldl
 *   PLANFORGE_CUDA_LIBS=SHIM planforge ...
 *
 * This program opens the first NVRTC by its path; whoever asks the loader for it by name, as cuDNN and cuBLASLt do, does
 * not get this one, because of its soname. Should one get it all the same, every function is there, the undocumented
 * ones too: cuDNN calls those without looking whether it found them.
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

/* Everything but nvrtcCreateProgram is passed on as it is. */
#define FORWARDED(each)                                                                                              \
    each(__nvrtcCPEx) each(__nvrtcNvvmHandle) each(nvrtcAddNameExpression) each(nvrtcCompileProgram)                 \
    each(nvrtcDestroyProgram) each(nvrtcGetBundledHeadersInfo) each(nvrtcGetCUBIN) each(nvrtcGetCUBINSize)           \
    each(nvrtcGetErrorString) each(nvrtcGetLTOIR) each(nvrtcGetLTOIRSize) each(nvrtcGetLoweredName)                  \
    each(nvrtcGetNumSupportedArchs) each(nvrtcGetOptiXIR) each(nvrtcGetOptiXIRSize) each(nvrtcGetPCHCreateStatus)    \
    each(nvrtcGetPCHHeapSize) each(nvrtcGetPCHHeapSizeRequired) each(nvrtcGetPTX) each(nvrtcGetPTXSize)              \
    each(nvrtcGetProgramLog) each(nvrtcGetProgramLogSize) each(nvrtcGetSupportedArchs) each(nvrtcGetTileIR)          \
    each(nvrtcGetTileIRSize) each(nvrtcInstallBundledHeaders) each(nvrtcRemoveBundledHeaders)                        \
    each(nvrtcSetFlowCallback) each(nvrtcSetPCHHeapSize) each(nvrtcVersion)

static Status (*create)(Program *, const char *, const char *, int, const char *const *, const char *const *);

/* A jump to the real function, whatever its arguments are. */
#if defined(__x86_64__)
#define JUMP(name) "jmp *real_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name) "adrp x16, real_" #name "\nldr x16, [x16, :lo12:real_" #name "]\nbr x16\n"
#else
#error "no jump is written for this processor"
#endif
#define FORWARD(name)                                                                                                \
    __attribute__((visibility("hidden"))) void *real_##name;                                                         \
    __asm__(".pushsection .text\n.globl " #name "\n.type " #name ", %function\n" #name ":\n" JUMP(name) ".popsection\n");
FORWARDED(FORWARD)

/* What a function does that the real library lacks. */
static Status absent(void) { return 11; /* NVRTC_ERROR_INTERNAL_ERROR */ }

/* Once, while the library is opened and nobody calls it yet. */
__attribute__((constructor)) static void find(void) {
    const char *path = getenv("PLANFORGE_TEST_NVRTC");
    void *library = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "nvrtc_shim: PLANFORGE_TEST_NVRTC names no library: %s\n", path ? dlerror() : "it is not set");
        abort();
    }
#define FIND(name)                                                                                                   \
    real_##name = dlsym(library, #name);                                                                             \
    if (!real_##name) real_##name = (void *)absent;
    FORWARDED(FIND)
    create = dlsym(library, "nvrtcCreateProgram");
    if (!create) abort();
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
    const char *insert = spoil("error") ? " this_does_not_compile(); " :
                         spoil("fault") ? " if (*(volatile int*)16 == 42) return; " : "";
    char *changed = spoiled(text, insert);
    Status status = create(program, changed, name, headers, sources, names);
    free(changed);
    return status;
}
