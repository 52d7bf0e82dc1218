/* A stand-in for libnvidia-ml.so.1: says what a file says.
 *
 * The file is named by MUSTER_NVML_SITUATION and is read anew on every call, so that a test changes
 * the situation under a process that runs. A line is a KEY, a DEVICE (an index, or * for all) and
 * values; the first line that matches holds. What is not in the file is NVML_ERROR_NOT_SUPPORTED.
 *
 *     return:FUNCTION DEVICE CODE     the function returns an error code; return:* all of a device
 *     sleep:FUNCTION DEVICE MS        the function takes so long before it does anything
 *     crash:FUNCTION DEVICE 1         the function ends the process
 *     xid DEVICE SEQUENCE NUMBER GPU_INSTANCE     an event, delivered once a process
 *     name 0 NVIDIA H200              other keys: see the functions below
 *
 * Compiled with -DOLD_DRIVER it lacks the functions that drivers of 2021 lack. Structures are as
 * in NVIDIA's published nvml.h; only what the agent calls is here.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, VERSION_MISMATCH = 25 };
enum { LINE = 512, MIG_MAX = 16, EVENTS_MAX = 4096 };

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
typedef struct { unsigned sms, copy, decoder, encoder, jpeg, ofa, slices, compute_slices;
                 unsigned long long memory_mb; } Attributes;
typedef struct { void *device; unsigned long long type, data; unsigned instance, compute; } Event;
typedef struct { unsigned char cluster[16]; unsigned status, clique; unsigned char state; } Fabric;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique;
                 unsigned char state; unsigned mask; unsigned char summary; } FabricV;
typedef struct { unsigned id, scope; long long at, latency; unsigned type, result;
                 union { double d; unsigned u; unsigned long long ull; } value; } Field;

static int initialised;

/* The values of the first line whose words are KEY and DEVICE; 0 when there is none. */
static int look(const char *key, int device, char *values)
{
    char line[LINE], found[LINE], wanted[32];
    const char *path = getenv("MUSTER_NVML_SITUATION");
    FILE *file = path ? fopen(path, "r") : NULL;
    int hit = 0;
    if (!file)
        return 0;
    snprintf(wanted, sizeof wanted, "%d", device);
    while (!hit && fgets(line, sizeof line, file)) {
        char *rest = NULL, *name, *where;
        line[strcspn(line, "\n")] = 0;
        strcpy(found, line);
        name = strtok_r(found, " ", &rest);
        where = strtok_r(NULL, " ", &rest);
        if (name && where && !strcmp(name, key) && (!strcmp(where, wanted) || !strcmp(where, "*"))) {
            snprintf(values, LINE, "%s", rest ? rest : "");
            hit = 1;
        }
    }
    fclose(file);
    return hit;
}

/* What the situation says that a function returns, after its sleep. */
static int enter(const char *function, int device)
{
    char key[LINE], values[LINE];
    snprintf(key, sizeof key, "sleep:%s", function);
    if (look(key, device, values))
        usleep(1000u * (unsigned)atoi(values));
    snprintf(key, sizeof key, "crash:%s", function);
    if (look(key, device, values))
        abort();
    snprintf(key, sizeof key, "return:%s", function);
    if (look(key, device, values) && atoi(values))
        return atoi(values);
    snprintf(key, sizeof key, "return:*");
    if (device >= 0 && look(key, device, values) && atoi(values))
        return atoi(values);
    return initialised || device < -1 ? OK : UNINITIALIZED;
}

#define BEGIN(device)                                                                              \
    char values[LINE];                                                                             \
    int result = enter(__func__, device);                                                          \
    (void)values;                                                                                  \
    if (result)                                                                                    \
        return result

static int number_of(void *handle) { return (int)((uintptr_t)handle & 0xff) - 1; }
static int mig_of(void *handle) { return (int)((uintptr_t)handle >> 8) - 1; }
static void *handle_of(int device) { return (void *)(uintptr_t)(device + 1); }

static int text(const char *key, int device, char *to, unsigned size)
{
    char values[LINE];
    if (!look(key, device, values))
        return NOT_SUPPORTED;
    if (strlen(values) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(to, values);
    return OK;
}

static int unsigned_value(const char *key, int device, unsigned *to)
{
    char values[LINE];
    if (!look(key, device, values))
        return NOT_SUPPORTED;
    *to = (unsigned)strtoul(values, NULL, 0);
    return OK;
}

static int long_value(const char *key, int device, unsigned long long *to)
{
    char values[LINE];
    if (!look(key, device, values))
        return NOT_SUPPORTED;
    *to = strtoull(values, NULL, 0);
    return OK;
}

#define TEXT(function, key)                                                                        \
    int function(void *h, char *to, unsigned size)                                                 \
    { BEGIN(number_of(h)); return text(key, number_of(h), to, size); }
#define NUMBER(function, key)                                                                      \
    int function(void *h, unsigned *to)                                                            \
    { BEGIN(number_of(h)); return unsigned_value(key, number_of(h), to); }
#define LONG(function, key)                                                                        \
    int function(void *h, unsigned long long *to)                                                  \
    { BEGIN(number_of(h)); return long_value(key, number_of(h), to); }
#define CHOSEN(function, key)                                                                      \
    int function(void *h, unsigned which, unsigned *to)                                            \
    {                                                                                              \
        char name[LINE];                                                                           \
        BEGIN(number_of(h));                                                                       \
        snprintf(name, sizeof name, "%s:%u", key, which);                                          \
        return unsigned_value(name, number_of(h), to);                                             \
    }

/* The library and the driver ------------------------------------------------------------------ */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    BEGIN(-2);
    initialised = 1;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { initialised = 0; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size)
{ BEGIN(-1); return text("driver", -1, to, size); }
int nvmlSystemGetNVMLVersion(char *to, unsigned size)
{ BEGIN(-1); return text("nvml", -1, to, size); }
int nvmlSystemGetCudaDriverVersion(int *to)
{ BEGIN(-1); return unsigned_value("cuda", -1, (unsigned *)to); }

/* Devices --------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *to) { BEGIN(-1); return unsigned_value("count", -1, to); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to)
{
    unsigned count = 0;
    BEGIN((int)index);
    unsigned_value("count", -1, &count);
    if (index >= count)
        return INVALID_ARGUMENT;
    *to = handle_of((int)index);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **to)
{
    unsigned count = 0;
    BEGIN(-1);
    unsigned_value("count", -1, &count);
    for (unsigned i = 0; i < count; i++)
        if (look("uuid", (int)i, values) && !strcmp(values, uuid)) {
            *to = handle_of((int)i);
            return OK;
        }
    return NOT_FOUND;
}

/* A MIG device has a name and a UUID of its own: values "GI CI SLICES MEMORY_MB UUID NAME". */
static int mig(void *h, unsigned *ids, unsigned long long *memory_mb, char *uuid, char *name)
{
    char key[32], values[LINE];
    snprintf(key, sizeof key, "mig:%d", mig_of(h));
    if (mig_of(h) < 0 || !look(key, number_of(h), values))
        return NOT_FOUND;
    sscanf(values, "%u %u %u %llu %95s %95[^\n]", ids, ids + 1, ids + 2, memory_mb, uuid, name);
    return OK;
}
static int mig_text(void *h, int uuid_wanted, char *to, unsigned size)
{
    unsigned ids[3];
    unsigned long long memory_mb;
    char uuid[96] = "", name[96] = "";
    int result = mig(h, ids, &memory_mb, uuid, name);
    if (!result)
        snprintf(to, size, "%s", uuid_wanted ? uuid : name);
    return result;
}
int nvmlDeviceGetName(void *h, char *to, unsigned size)
{
    BEGIN(number_of(h));
    return mig_of(h) >= 0 ? mig_text(h, 0, to, size) : text("name", number_of(h), to, size);
}
int nvmlDeviceGetUUID(void *h, char *to, unsigned size)
{
    BEGIN(number_of(h));
    return mig_of(h) >= 0 ? mig_text(h, 1, to, size) : text("uuid", number_of(h), to, size);
}

static void put_pci(const char *address, Pci *to)
{
    memset(to, 0, sizeof *to);
    sscanf(address, "%x:%x:%x", &to->domain, &to->bus, &to->device);
    snprintf(to->address, sizeof to->address, "%s", address);
}
int nvmlDeviceGetPciInfo_v3(void *h, Pci *to)
{
    BEGIN(number_of(h));
    if (!look("pci", number_of(h), values))
        return NOT_SUPPORTED;
    put_pci(values, to);
    return OK;
}
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetComputeMode, "compute-mode")

static int memory(int device, unsigned long long *to)
{
    char values[LINE];
    if (!look("memory", device, values))
        return NOT_SUPPORTED;
    sscanf(values, "%llu %llu %llu", to, to + 1, to + 2);
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *h, Memory *to)
{
    unsigned long long amounts[3] = {0, 0, 0}; /* total, used, reserved */
    BEGIN(number_of(h));
    result = memory(number_of(h), amounts);
    to->total = amounts[0];
    to->used = amounts[1] + amounts[2];
    to->free = to->total - to->used;
    return result;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *h, Memory2 *to)
{
    unsigned long long amounts[3] = {0, 0, 0};
    BEGIN(number_of(h));
    if (to->version != (sizeof *to | 2u << 24))
        return VERSION_MISMATCH;
    result = memory(number_of(h), amounts);
    to->total = amounts[0];
    to->used = amounts[1];
    to->reserved = amounts[2];
    to->free = to->total - to->used - to->reserved;
    return result;
}
#endif

/* Usage ------------------------------------------------------------------------------------------ */

int nvmlDeviceGetUtilizationRates(void *h, Utilization *to)
{
    BEGIN(number_of(h));
    if (!look("utilization", number_of(h), values))
        return NOT_SUPPORTED;
    sscanf(values, "%u %u", &to->gpu, &to->memory);
    return OK;
}
NUMBER(nvmlDeviceGetPowerUsage, "power-mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power-limit-mw")
LONG(nvmlDeviceGetTotalEnergyConsumption, "energy-mj")
CHOSEN(nvmlDeviceGetTemperature, "temperature")
#ifndef OLD_DRIVER
int nvmlDeviceGetTemperatureV(void *h, Temperature *to)
{
    char name[32];
    unsigned found = 0;
    BEGIN(number_of(h));
    if (to->version != (sizeof *to | 1u << 24))
        return VERSION_MISMATCH;
    snprintf(name, sizeof name, "temperature:%u", to->sensor);
    result = unsigned_value(name, number_of(h), &found);
    to->temperature = (int)found;
    return result;
}
LONG(nvmlDeviceGetCurrentClocksEventReasons, "clock-reasons")
#endif
LONG(nvmlDeviceGetCurrentClocksThrottleReasons, "clock-reasons")
CHOSEN(nvmlDeviceGetClockInfo, "clock-mhz")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie-generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie-generation-max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie-width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie-width-max")
CHOSEN(nvmlDeviceGetPcieThroughput, "pcie-kb-per-s")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie-replays")

int nvmlDeviceGetFieldValues(void *h, int count, Field *fields)
{
    BEGIN(number_of(h));
    for (int i = 0; i < count; i++) {
        char name[64];
        unsigned long long found = 0;
        snprintf(name, sizeof name, "field:%u:%u", fields[i].id, fields[i].scope);
        fields[i].result = (unsigned)long_value(name, number_of(h), &found);
        fields[i].type = 3; /* unsigned long long */
        fields[i].value.ull = found;
        if (fields[i].id == 82) { /* memory temperature is an unsigned int */
            fields[i].type = 1;
            fields[i].value.u = (unsigned)found;
        }
    }
    return OK;
}

/* Errors ------------------------------------------------------------------------------------------ */

int nvmlDeviceGetEccMode(void *h, unsigned *current, unsigned *pending)
{
    BEGIN(number_of(h));
    if (!look("ecc-mode", number_of(h), values))
        return NOT_SUPPORTED;
    sscanf(values, "%u %u", current, pending);
    return OK;
}
int nvmlDeviceGetTotalEccErrors(void *h, unsigned error, unsigned counter, unsigned long long *to)
{
    char name[32];
    BEGIN(number_of(h));
    snprintf(name, sizeof name, "ecc:%u:%u", error, counter);
    return long_value(name, number_of(h), to);
}
int nvmlDeviceGetRetiredPages(void *h, unsigned cause, unsigned *count, unsigned long long *pages)
{
    char name[32];
    unsigned found = 0, room = *count;
    BEGIN(number_of(h));
    snprintf(name, sizeof name, "retired:%u", cause);
    result = unsigned_value(name, number_of(h), &found);
    if (result)
        return result;
    *count = found;
    if (!pages || room < found)
        return found ? INSUFFICIENT_SIZE : OK;
    for (unsigned i = 0; i < found; i++)
        pages[i] = 4096ull * i;
    return OK;
}
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired-pending")
int nvmlDeviceGetRemappedRows(void *h, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed)
{
    BEGIN(number_of(h));
    if (!look("remapped", number_of(h), values))
        return NOT_SUPPORTED;
    sscanf(values, "%u %u %u %u", corr, unc, pending, failed);
    return OK;
}

/* Processes: lines "KEY DEVICE PID BYTES", as many as there are. ---------------------------------- */

static int processes(const char *key, int device, unsigned *count, Process *to)
{
    char line[LINE], name[64], where[32];
    const char *path = getenv("MUSTER_NVML_SITUATION");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned found = 0, room = *count, pid;
    unsigned long long used;
    if (!file)
        return NOT_SUPPORTED;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %31s %u %llu", name, where, &pid, &used) == 4 && !strcmp(name, key) &&
            atoi(where) == device) {
            if (to && found < room)
                to[found] = (Process){pid, used, ~0u, ~0u};
            found++;
        }
    fclose(file);
    *count = found;
    return found > room || (!to && found) ? INSUFFICIENT_SIZE : OK;
}
#define PROCESSES(function, key)                                                                   \
    int function(void *h, unsigned *count, Process *to)                                            \
    { BEGIN(number_of(h)); return processes(key, number_of(h), count, to); }
#ifndef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "process")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps-process")
#endif
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "process")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps-process")

/* NVLink and fabric -------------------------------------------------------------------------------- */

CHOSEN(nvmlDeviceGetNvLinkState, "nvlink-state")
CHOSEN(nvmlDeviceGetNvLinkRemoteDeviceType, "nvlink-remote-type")
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, Pci *to)
{
    char name[32];
    BEGIN(number_of(h));
    snprintf(name, sizeof name, "nvlink-remote-pci:%u", link);
    if (!look(name, number_of(h), values))
        return NOT_SUPPORTED;
    put_pci(values, to);
    return OK;
}
/* Values "STATE STATUS CLIQUE CLUSTER", the cluster as 32 hexadecimal digits. */
static int fabric(int device, unsigned *state, unsigned *status, unsigned *clique, unsigned char *to)
{
    char values[LINE], digits[64] = "";
    if (!look("fabric", device, values))
        return NOT_SUPPORTED;
    sscanf(values, "%u %u %u %63s", state, status, clique, digits);
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        sscanf(digits + 2 * i, "%2x", &byte);
        to[i] = (unsigned char)byte;
    }
    return OK;
}
int nvmlDeviceGetGpuFabricInfo(void *h, Fabric *to)
{
    unsigned state = 0;
    BEGIN(number_of(h));
    result = fabric(number_of(h), &state, &to->status, &to->clique, to->cluster);
    to->state = (unsigned char)state;
    return result;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetGpuFabricInfoV(void *h, FabricV *to)
{
    unsigned state = 0;
    BEGIN(number_of(h));
    if (to->version != (36u | 2u << 24) && to->version != (40u | 3u << 24))
        return VERSION_MISMATCH;
    result = fabric(number_of(h), &state, &to->status, &to->clique, to->cluster);
    to->state = (unsigned char)state;
    to->mask = 0;
    return result;
}
#endif

/* MIG ------------------------------------------------------------------------------------------------ */

int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending)
{
    BEGIN(number_of(h));
    if (!look("mig-mode", number_of(h), values))
        return NOT_SUPPORTED;
    sscanf(values, "%u %u", current, pending);
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *to)
{
    BEGIN(number_of(h));
    *to = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **to)
{
    char key[32];
    BEGIN(number_of(h));
    snprintf(key, sizeof key, "mig:%u", index);
    if (index >= MIG_MAX || !look(key, number_of(h), values))
        return NOT_FOUND;
    *to = (void *)((uintptr_t)h | (uintptr_t)(index + 1) << 8);
    return OK;
}
static int mig_id(void *h, int which, unsigned *to)
{
    unsigned ids[3] = {0, 0, 0};
    unsigned long long memory_mb;
    char uuid[96], name[96];
    int result = mig(h, ids, &memory_mb, uuid, name);
    *to = ids[which];
    return result;
}
int nvmlDeviceGetGpuInstanceId(void *h, unsigned *to)
{ BEGIN(number_of(h)); return mig_id(h, 0, to); }
int nvmlDeviceGetComputeInstanceId(void *h, unsigned *to)
{ BEGIN(number_of(h)); return mig_id(h, 1, to); }
int nvmlDeviceGetAttributes_v2(void *h, Attributes *to)
{
    unsigned ids[3] = {0, 0, 0};
    char uuid[96], name[96];
    BEGIN(number_of(h));
    memset(to, 0, sizeof *to);
    result = mig(h, ids, &to->memory_mb, uuid, name);
    to->slices = to->compute_slices = ids[2];
    return result;
}

/* Events: each line "xid DEVICE SEQUENCE NUMBER GPU_INSTANCE" is delivered once. ---------------------- */

static char delivered[EVENTS_MAX];

int nvmlEventSetCreate(void **to) { BEGIN(-1); *to = &delivered; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *h, unsigned long long *to)
{
    BEGIN(number_of(h));
    if (long_value("event-types", number_of(h), to))
        *to = 0x1f;
    return OK;
}
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set)
{
    (void)types, (void)set;
    BEGIN(number_of(h));
    return OK;
}
static int next_event(Event *to)
{
    char line[LINE];
    const char *path = getenv("MUSTER_NVML_SITUATION");
    FILE *file = path ? fopen(path, "r") : NULL;
    int device, sequence, hit = 0;
    unsigned number, instance;
    if (!file)
        return 0;
    while (!hit && fgets(line, sizeof line, file))
        if (sscanf(line, "xid %d %d %u %u", &device, &sequence, &number, &instance) == 4 &&
            sequence >= 0 && sequence < EVENTS_MAX && !delivered[sequence]) {
            delivered[sequence] = 1;
            *to = (Event){handle_of(device), 8, number, instance, ~0u};
            hit = 1;
        }
    fclose(file);
    return hit;
}
static int wait_event(Event *to, unsigned timeout_ms)
{
    for (unsigned waited = 0;; waited += 50) {
        if (next_event(to))
            return OK;
        if (waited >= timeout_ms)
            return TIMEOUT;
        usleep(50000);
    }
}
int nvmlEventSetWait(void *set, Event *to, unsigned timeout_ms)
{
    (void)set;
    BEGIN(-1);
    return wait_event(to, timeout_ms);
}
#ifndef OLD_DRIVER
int nvmlEventSetWait_v2(void *set, Event *to, unsigned timeout_ms)
{
    (void)set;
    BEGIN(-1);
    return wait_event(to, timeout_ms);
}
#endif
