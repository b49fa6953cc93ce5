/* A management library without a driver, for tests of who calls one. It answers as the header says, of three boards:
 *
 *   0  an H200 with processes, samples, accounts and errors on it
 *   1  an A100 in slices: two slots of three are taken
 *   2  one that fell off the bus
 *
 * DRIVER      the driver's version, a text
 * PROCESSES   the newest form of the lists of running processes: 1, 2 or 3
 * WIDE        entries of the third form are the widest
 * OLD         functions that came later are missing
 * NO_DRIVER   the library is there, the driver is not loaded
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#ifndef DRIVER
#define DRIVER "570.86.10"
#endif
#ifndef PROCESSES
#define PROCESSES 3
#endif

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_MODULE = 9, TIMEOUT = 10, LOST = 15, MISMATCH = 25 };

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct device { u32 number; const char *uuid, *name; } device;

static device BOARDS[] = {
    { 0, "GPU-aa000000-0000-0000-0000-000000000000", "NVIDIA H200" },
    { 1, "GPU-bb000000-0000-0000-0000-000000000000", "NVIDIA A100-SXM4-40GB" },
    { 2, "GPU-cc000000-0000-0000-0000-000000000000", "NVIDIA H200" },
};
static device SLICES[] = {
    { 10, "MIG-bb000001-0000-0000-0000-000000000000", "NVIDIA A100-SXM4-40GB MIG 1g.5gb" },
    { 11, "MIG-bb000002-0000-0000-0000-000000000000", "NVIDIA A100-SXM4-40GB MIG 3g.20gb" },
};

/* What tests ask: initialisations and sets of events that were not given back. */
int fake_initialised, fake_event_sets;

static u32 text(const char *from, char *to, u32 length) {
    if (strlen(from) + 1 > length) return TOO_SMALL;
    strcpy(to, from);
    return OK;
}
/* An array of so many elements, as every function of the library gives one. */
static u32 array(u32 have, u32 *count, void *to, const void *from, size_t bytes) {
    u32 room = *count;
    *count = have;
    if (have == 0) return OK;
    if (!to || room < have) return TOO_SMALL;
    memcpy(to, from, have * bytes);
    return OK;
}

u32 nvmlInit_v2(void) {
#ifdef NO_DRIVER
    return NO_MODULE;
#endif
    fake_initialised++;
    return OK;
}
u32 nvmlShutdown(void) { fake_initialised--; return OK; }
u32 nvmlSystemGetDriverVersion(char *to, u32 length) { return text(DRIVER, to, length); }
u32 nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = 12080; return OK; }
u32 nvmlDeviceGetCount_v2(u32 *to) { *to = 3; return OK; }
u32 nvmlDeviceGetHandleByIndex_v2(u32 index, device **to) {
    if (index >= 3) return INVALID;
    *to = &BOARDS[index];
    return OK;
}
u32 nvmlDeviceGetHandleByUUID(const char *uuid, device **to) {
    for (int i = 0; i < 3; i++)
        if (!strcmp(uuid, BOARDS[i].uuid)) { *to = &BOARDS[i]; return OK; }
    for (int i = 0; i < 2; i++)
        if (!strcmp(uuid, SLICES[i].uuid)) { *to = &SLICES[i]; return OK; }
    return NOT_FOUND;
}

u32 nvmlDeviceGetName(device *of, char *to, u32 length) { return text(of->name, to, length); }
u32 nvmlDeviceGetUUID(device *of, char *to, u32 length) { return of->number == 2 ? LOST : text(of->uuid, to, length); }
u32 nvmlDeviceGetBoardPartNumber(device *of, char *to, u32 length) {
    return of->number == 0 ? text("900-21010-0140-030", to, length) : UNSUPPORTED;
}
u32 nvmlDeviceGetVbiosVersion(device *of, char *to, u32 length) { return text("96.00.BC.00.02", to, length); }

typedef struct { char legacy[16]; u32 domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_info;
u32 nvmlDeviceGetPciInfo_v3(device *of, pci_info *to) {
    memset(to, 0, sizeof *to);
    to->device_id = of->number == 1 ? 0x20b010de : 0x233510de;
    to->subsystem_id = 0x18be10de;
    sprintf(to->bus_id, "00000000:%02X:00.0", 0x1b + of->number);
    return OK;
}
u32 nvmlDeviceGetCudaComputeCapability(device *of, int *major, int *minor) {
    *major = of->number == 1 ? 8 : 9;
    *minor = 0;
    return OK;
}
u32 nvmlDeviceGetNumGpuCores(device *of, u32 *to) { *to = of->number == 1 ? 6912 : 16896; return OK; }
u32 nvmlDeviceGetMemoryBusWidth(device *of, u32 *to) { *to = 6144; return OK; }
u32 nvmlDeviceGetMaxPcieLinkWidth(device *of, u32 *to) { *to = 16; return OK; }
u32 nvmlDeviceGetMaxPcieLinkGeneration(device *of, u32 *to) { *to = 5; return OK; }
/* The A100 idles, and its link with it. */
u32 nvmlDeviceGetCurrPcieLinkWidth(device *of, u32 *to) { *to = of->number == 1 ? 8 : 16; return OK; }
u32 nvmlDeviceGetCurrPcieLinkGeneration(device *of, u32 *to) { *to = of->number == 1 ? 1 : 5; return OK; }
/* SM 1, memory 2. */
static u32 clock(u32 kind, u32 sm, u32 memory, u32 *to) {
    if (kind != 1 && kind != 2) return INVALID;
    *to = kind == 1 ? sm : memory;
    return OK;
}
u32 nvmlDeviceGetMaxClockInfo(device *of, u32 kind, u32 *to) { return clock(kind, 1980, 3201, to); }
u32 nvmlDeviceGetClockInfo(device *of, u32 kind, u32 *to) { return clock(kind, 345, 2619, to); }
u32 nvmlDeviceGetApplicationsClock(device *of, u32 kind, u32 *to) { return clock(kind, 1755, 3201, to); }
u32 nvmlDeviceGetEnforcedPowerLimit(device *of, u32 *to) { *to = 700000; return OK; }
u32 nvmlDeviceGetPowerUsage(device *of, u32 *to) { *to = 112500; return OK; }
/* A joule more each time that somebody asks. */
u32 nvmlDeviceGetTotalEnergyConsumption(device *of, u64 *to) {
    static u64 used = 7000000000ull;
    if (of->number != 0) return UNSUPPORTED;
    *to = used += 1000;
    return OK;
}
u32 nvmlDeviceGetTemperature(device *of, u32 sensor, u32 *to) {
    if (sensor != 0) return INVALID;
    *to = 41;
    return OK;
}
/* A power cap, a slowdown for heat, and idling. */
#define REASONS (0x04 | 0x20 | 0x01)
#ifdef OLD
u32 nvmlDeviceGetCurrentClocksThrottleReasons(device *of, u64 *to) { *to = REASONS; return OK; }
#else
u32 nvmlDeviceGetCurrentClocksEventReasons(device *of, u64 *to) { *to = REASONS; return OK; }
#endif
typedef struct { u32 gpu, memory; } rates;
u32 nvmlDeviceGetUtilizationRates(device *of, rates *to) { to->gpu = 37; to->memory = 5; return OK; }

#define MIB (1ull << 20)
typedef struct { u64 total, free, used; } memory_v1;
u32 nvmlDeviceGetMemoryInfo(device *of, memory_v1 *to) {
    to->total = 143771 * MIB;
    to->used = 1100 * MIB;
    to->free = to->total - to->used;
    return OK;
}
#ifndef OLD
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
u32 nvmlDeviceGetMemoryInfo_v2(device *of, memory_v2 *to) {
    if (to->version != (sizeof *to | 2 << 24)) return MISMATCH;
    to->total = 143771 * MIB;
    to->reserved = 600 * MIB;
    to->used = 500 * MIB;
    to->free = to->total - to->reserved - to->used;
    return OK;
}
#endif
u32 nvmlDeviceGetEccMode(device *of, u32 *current, u32 *pending) { *current = 1; *pending = 0; return OK; }
/* Uncorrected 1; volatile 0. */
u32 nvmlDeviceGetTotalEccErrors(device *of, u32 kind, u32 counter, u64 *to) {
    if (kind != 1 || counter != 0) return INVALID;
    *to = 5000000000ull;
    return OK;
}
u32 nvmlDeviceGetRetiredPagesPendingStatus(device *of, u32 *to) { *to = 1; return OK; }
u32 nvmlDeviceGetPersistenceMode(device *of, u32 *to) { *to = 1; return OK; }
u32 nvmlDeviceGetComputeMode(device *of, u32 *to) { *to = of->number == 0 ? 3 : 77; return OK; }
u32 nvmlDeviceGetVirtualizationMode(device *of, u32 *to) { *to = of->number == 0 ? 1 : 0; return OK; }

typedef struct {
    u32 field, scope;
    long long timestamp, latency;
    u32 type, code;
    union { double d; u32 ui; u64 ull; long long sll; } value;
} field_value;
#ifndef OLD
/* The first board has to be reset, as a number of 32 bits beside bytes that mean nothing; the second knows no such field. */
u32 nvmlDeviceGetFieldValues(device *of, int count, field_value *to) {
    for (int i = 0; i < count; i++) {
        to[i].code = to[i].field == 230 && of->number == 0 ? OK : UNSUPPORTED;
        to[i].type = 1;
        to[i].value.ull = ~0ull;
        to[i].value.ui = 1;
    }
    return OK;
}
#endif

u32 nvmlDeviceGetMigMode(device *of, u32 *current, u32 *pending) {
    if (of->number != 1) return UNSUPPORTED;
    *current = *pending = 1;
    return OK;
}
u32 nvmlDeviceGetMaxMigDeviceCount(device *of, u32 *to) { *to = 3; return OK; }
u32 nvmlDeviceGetMigDeviceHandleByIndex(device *of, u32 index, device **to) {
    if (index > 1) return NOT_FOUND;
    *to = &SLICES[index];
    return OK;
}
typedef struct { u32 sms, engines[5], gpu_slices, compute_slices; u64 memory_mib; } attributes;
u32 nvmlDeviceGetAttributes_v2(device *of, attributes *to) {
    int second = of->number == 11;
    *to = (attributes){ second ? 42 : 14, { 9, 9, 9, 9, 9 }, second ? 3 : 1, 7, second ? 19968 : 4864 };
    return OK;
}

/* Processes of numbers that no host has: more are there each time, until there are 40. The first tells no memory. */
typedef struct { u32 pid; u64 used; } process_v1;
typedef struct { u32 pid; u64 used; u32 gpu_slice, compute_slice; } process_v2;
typedef struct { u32 pid; u64 used; u32 gpu_slice, compute_slice; u64 protected; } process_wide;
#define LIST(NAME, TYPE)                                              \
    u32 NAME(device *of, u32 *count, TYPE *to) {                      \
        static u32 asked;                                             \
        TYPE all[40];                                                 \
        u32 have = asked++ < 2 ? 20 * asked : 40;                     \
        memset(all, 0xee, sizeof all);                                \
        for (u32 i = 0; i < 40; i++) {                                \
            all[i].pid = 2000000000 + i;                                    \
            all[i].used = i == 0 ? ~0ull : i * MIB;                   \
        }                                                             \
        if (of->number != 0) have = 0;                                \
        return array(have, count, to, all, sizeof *all);              \
    }
#if PROCESSES == 3 && defined WIDE
LIST(nvmlDeviceGetComputeRunningProcesses_v3, process_wide)
#elif PROCESSES == 3
LIST(nvmlDeviceGetComputeRunningProcesses_v3, process_v2)
#endif
#if PROCESSES >= 2
LIST(nvmlDeviceGetComputeRunningProcesses_v2, process_v2)
#endif
LIST(nvmlDeviceGetComputeRunningProcesses, process_v1)
/* Graphics is supported by none, whatever the form. */
#if PROCESSES == 3
u32 nvmlDeviceGetGraphicsRunningProcesses_v3(device *of, u32 *count, void *to) { return UNSUPPORTED; }
#endif

typedef struct { u32 pid; u64 timestamp; u32 sm, memory, encoder, decoder; } utilization;
u32 nvmlDeviceGetProcessUtilization(device *of, utilization *to, u32 *count, u64 since) {
    static const utilization ALL[] = { { 7001, 5000000, 40, 3, 2, 1 }, { 7002, 5200000, 50, 0, 0, 0 } };
    if (of->number != 0 || since >= 5200000) return NOT_FOUND;
    return array(2, count, to, ALL, sizeof *ALL);
}
typedef struct { u64 timestamp; u64 value; } sample;
u32 nvmlDeviceGetSamples(device *of, u32 kind, u64 since, u32 *type, u32 *count, sample *to) {
    static const sample ALL[119];
    if (kind != 1) return INVALID;
    *type = 1;
    /* Without a buffer this one tells the length as a success. */
    if (!to) { *count = 119; return OK; }
    return array(119, count, to, ALL, sizeof *ALL);
}
u32 nvmlDeviceGetAccountingMode(device *of, u32 *to) { *to = 1; return OK; }
u32 nvmlDeviceGetAccountingPids(device *of, u32 *count, u32 *to) {
    static const u32 ALL[] = { 8001, 8002 };
    return array(2, count, to, ALL, sizeof *ALL);
}
typedef struct { u32 gpu, memory; u64 most, time, start; u32 running, reserved[5]; } account;
u32 nvmlDeviceGetAccountingStats(device *of, u32 pid, account *to) {
    if (pid != 8001 && pid != 8002) return NOT_FOUND;
    *to = (account){ 30, 20, 5 * MIB, 300, 7000000, pid == 8002, { 0 } };
    return OK;
}

static u64 REPORTED[] = { 31, 79 };
typedef struct { u32 next; int registered; } event_set;
static event_set SETS[16];
typedef struct { device *of; u64 kind, data; u32 gpu_slice, compute_slice; } event;
u32 nvmlEventSetCreate(event_set **to) { *to = &SETS[fake_event_sets++ % 16]; **to = (event_set){ 0 }; return OK; }
u32 nvmlEventSetFree(event_set *set) { fake_event_sets--; return OK; }
u32 nvmlDeviceRegisterEvents(device *of, u64 kinds, event_set *set) {
    if (of->number != 0) return UNSUPPORTED;
    set->registered = kinds == 8;
    return OK;
}
u32 nvmlEventSetWait_v2(event_set *set, event *to, u32 timeout_ms) {
    if (!set->registered || timeout_ms != 0 || set->next >= 2) return TIMEOUT;
    *to = (event){ &BOARDS[0], 8, REPORTED[set->next++], ~0u, ~0u };
    return OK;
}
