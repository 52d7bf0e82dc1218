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
       INSUFFICIENT_SIZE = 7, TIMEOUT = 10, IN_USE = 19, INSUFFICIENT_RESOURCES = 23,
       VERSION_MISMATCH = 25 };
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
static int mig_of(void *handle) { return (int)((uintptr_t)handle >> 8 & 0xff) - 1; }
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

/* A MIG device has a name and a UUID of its own: "GI CI SLICES MEMORY_MB UUID NAME", or it was made. */
static int made_mig(int device, int which, unsigned *ids, unsigned long long *memory_mb, char *uuid,
                    char *name);
static int mig(void *h, unsigned *ids, unsigned long long *memory_mb, char *uuid, char *name)
{
    char key[32], values[LINE];
    if (mig_of(h) < 0)
        return NOT_FOUND;
    snprintf(key, sizeof key, "mig:%d", mig_of(h));
    if (!look(key, number_of(h), values))
        return made_mig(number_of(h), mig_of(h), ids, memory_mb, uuid, name);
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

static int mig_memory(void *h, unsigned long long *to);
static int memory(void *h, unsigned long long *to)
{
    char values[LINE];
    if (mig_of(h) >= 0)
        return mig_memory(h, to);
    if (!look("memory", number_of(h), values))
        return NOT_SUPPORTED;
    sscanf(values, "%llu %llu %llu", to, to + 1, to + 2);
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *h, Memory *to)
{
    unsigned long long amounts[3] = {0, 0, 0}; /* total, used, reserved */
    BEGIN(number_of(h));
    result = memory(h, amounts);
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
    result = memory(h, amounts);
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

/* Processes: lines "KEY DEVICE PID BYTES [GPU_INSTANCE COMPUTE_INSTANCE]", as many as there are. */

static int processes(const char *key, int device, unsigned *count, Process *to)
{
    char line[LINE], name[64], where[32];
    const char *path = getenv("MUSTER_NVML_SITUATION");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned found = 0, room = *count, pid, instance, compute;
    unsigned long long used;
    if (!file)
        return NOT_SUPPORTED;
    while (fgets(line, sizeof line, file)) {
        int values = sscanf(line, "%63s %31s %u %llu %u %u", name, where, &pid, &used, &instance,
                            &compute);
        if (values < 4 || strcmp(name, key) || atoi(where) != device)
            continue;
        if (to && found < room)
            to[found] = values == 6 ? (Process){pid, used, instance, compute}
                                    : (Process){pid, used, ~0u, ~0u};
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

/* MIG ------------------------------------------------------------------------------------------------
 *
 * What is made is kept in the file SITUATION.mig, so that it outlives the process as in a device:
 *
 *     mode DEVICE CURRENT PENDING
 *     gi DEVICE ID PROFILE START SIZE          a GPU instance
 *     ci DEVICE GI ID PROFILE 0                a compute instance
 *
 * What a device can have: "mig-profile:NUMBER DEVICE ID SLICES COUNT MEMORY_MB NAME", and where:
 * "mig-place:ID DEVICE START:SIZE ...". "mig-activation DEVICE CODE": what a change of mode meets.
 */

enum { KEPT_MAX = 128, PROFILES = 18 };
typedef struct { char kind[8]; unsigned device, a, b, c, d; } Kept;
typedef struct { unsigned id, slices, count; unsigned long long memory_mb; char name[64]; } Shape;
typedef struct { unsigned start, size; } Placement;
typedef struct { unsigned version, id, p2p, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
                 unsigned long long memory_mb; char name[96]; } ProfileInfo;
typedef struct { unsigned version, id, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
                 char name[96]; } ComputeProfileInfo;
typedef struct { void *device; unsigned id, profile; Placement placement; } InstanceInfo;
typedef struct { void *device, *instance; unsigned id, profile; Placement placement; } ComputeInfo;

static const unsigned compute_slices[] = {1, 2, 3, 4, 7, 8, 6};

static FILE *kept_file(const char *suffix, const char *mode)
{
    char path[4096];
    const char *situation = getenv("MUSTER_NVML_SITUATION");
    snprintf(path, sizeof path, "%s.mig%s", situation ? situation : "", suffix);
    return fopen(path, mode);
}
static unsigned kept(Kept *to)
{
    FILE *file = kept_file("", "r");
    unsigned count = 0;
    while (file && count < KEPT_MAX &&
           fscanf(file, "%7s %u %u %u %u %u", to[count].kind, &to[count].device, &to[count].a,
                  &to[count].b, &to[count].c, &to[count].d) == 6)
        count++;
    if (file)
        fclose(file);
    return count;
}
static int keep(const Kept *all, unsigned count)
{
    char from[4096], to[4096];
    FILE *file = kept_file(".new", "w");
    if (!file)
        return NOT_SUPPORTED;
    for (unsigned i = 0; i < count; i++)
        fprintf(file, "%s %u %u %u %u %u\n", all[i].kind, all[i].device, all[i].a, all[i].b, all[i].c,
                all[i].d);
    fclose(file);
    snprintf(to, sizeof to, "%s.mig", getenv("MUSTER_NVML_SITUATION"));
    snprintf(from, sizeof from, "%s.mig.new", getenv("MUSTER_NVML_SITUATION"));
    return rename(from, to) ? NOT_SUPPORTED : OK;
}
/* Take away entries of a kind whose first values are A and, unless it is ~0, B. */
static int drop(const char *kind, unsigned device, unsigned a, unsigned b)
{
    Kept all[KEPT_MAX];
    unsigned count = kept(all), left = 0;
    for (unsigned i = 0; i < count; i++)
        if (strcmp(all[i].kind, kind) || all[i].device != device || (a != ~0u && all[i].a != a) ||
            (b != ~0u && all[i].b != b))
            all[left++] = all[i];
    return keep(all, left);
}
static int add(Kept one)
{
    Kept all[KEPT_MAX];
    unsigned count = kept(all);
    if (count == KEPT_MAX)
        return INSUFFICIENT_RESOURCES;
    all[count] = one;
    return keep(all, count + 1);
}
static int found(const char *kind, unsigned device, unsigned a, unsigned b, Kept *to)
{
    Kept all[KEPT_MAX];
    unsigned count = kept(all);
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(all[i].kind, kind) && all[i].device == device && (a == ~0u || all[i].a == a) &&
            (b == ~0u || all[i].b == b)) {
            *to = all[i];
            return 1;
        }
    return 0;
}

static int shape(int device, int number, unsigned id, Shape *to)
{
    char key[32], values[LINE];
    for (int i = number < 0 ? 0 : number; i < (number < 0 ? PROFILES : number + 1); i++) {
        snprintf(key, sizeof key, "mig-profile:%d", i);
        if (look(key, device, values) &&
            sscanf(values, "%u %u %u %llu %63s", &to->id, &to->slices, &to->count, &to->memory_mb,
                   to->name) == 5 && (number >= 0 || to->id == id))
            return 1;
    }
    return 0;
}
static unsigned places(int device, unsigned profile, Placement *to)
{
    char key[32], values[LINE], *rest = NULL;
    unsigned count = 0;
    snprintf(key, sizeof key, "mig-place:%u", profile);
    if (!look(key, device, values))
        return 0;
    for (char *word = strtok_r(values, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (sscanf(word, "%u:%u", &to[count].start, &to[count].size) == 2)
            count++;
    return count;
}
static int modes(int device, unsigned *current, unsigned *pending)
{
    char values[LINE];
    Kept mode;
    if (!look("mig-mode", device, values))
        return NOT_SUPPORTED;
    sscanf(values, "%u %u", current, pending);
    if (found("mode", (unsigned)device, ~0u, ~0u, &mode)) {
        *current = mode.a;
        *pending = mode.b;
    }
    return OK;
}
static int is_used(int device)
{
    char values[LINE];
    return look("process", device, values);
}

int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending)
{ BEGIN(number_of(h)); return modes(number_of(h), current, pending); }
int nvmlDeviceSetMigMode(void *h, unsigned mode, unsigned *activation)
{
    unsigned current, pending, device = (unsigned)number_of(h);
    BEGIN(number_of(h));
    result = modes((int)device, &current, &pending);
    if (result)
        return result;
    *activation = OK;
    if (mode != current)
        *activation = look("mig-activation", (int)device, values) ? (unsigned)atoi(values)
                      : is_used((int)device)                      ? IN_USE
                                                                  : OK;
    result = drop("mode", device, ~0u, ~0u);
    if (!result)
        result = add((Kept){"mode", device, *activation ? current : mode, mode, 0, 0});
    return result;
}
static void *part(void *h, unsigned instance, unsigned compute)
{
    uintptr_t device = (uintptr_t)h & 0xff;
    return (void *)(device | (uintptr_t)(instance + 1) << 16 | (uintptr_t)compute << 32);
}
static unsigned instance_of(void *h) { return (unsigned)((uintptr_t)h >> 16 & 0xffff) - 1; }
static unsigned compute_of(void *h) { return (unsigned)((uintptr_t)h >> 32) - 1; }

#ifndef OLD_DRIVER
int nvmlDeviceGetGpuInstanceProfileInfoV(void *h, unsigned number, ProfileInfo *to)
{
    Shape one;
    BEGIN(number_of(h));
    if (to->version != (sizeof *to | 2u << 24))
        return VERSION_MISMATCH;
    if (!shape(number_of(h), (int)number, 0, &one))
        return NOT_SUPPORTED;
    to->id = one.id, to->slices = one.slices, to->instances = one.count;
    to->memory_mb = one.memory_mb;
    snprintf(to->name, sizeof to->name, "MIG %s", one.name);
    return OK;
}
#endif
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *h, unsigned profile, Placement *to, unsigned *count)
{
    Placement all[64];
    BEGIN(number_of(h));
    *count = places(number_of(h), profile, all);
    memcpy(to, all, *count * sizeof *to);
    return OK;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(void *h, unsigned profile, const Placement *at, void **to)
{
    Kept all[KEPT_MAX];
    Placement possible[64];
    Shape wanted, one;
    unsigned current = 0, pending, slices = 0, alike = 0, id = 1, allowed = 0;
    unsigned device = (unsigned)number_of(h), count;
    BEGIN(number_of(h));
    if (modes((int)device, &current, &pending) || !current || !shape((int)device, -1, profile, &wanted))
        return NOT_SUPPORTED;
    count = places((int)device, profile, possible);
    for (unsigned i = 0; i < count; i++)
        allowed |= possible[i].start == at->start && possible[i].size == at->size;
    if (!allowed)
        return INVALID_ARGUMENT;
    count = kept(all);
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(all[i].kind, "gi") && all[i].device == device) {
            if (at->start < all[i].c + all[i].d && all[i].c < at->start + at->size)
                return INSUFFICIENT_RESOURCES;
            if (shape((int)device, -1, all[i].b, &one))
                slices += one.slices;
            alike += all[i].b == profile;
        }
    if (slices + wanted.slices > 7 || alike >= wanted.count)
        return INSUFFICIENT_RESOURCES;
    while (found("gi", device, id, ~0u, all))
        id++;
    *to = part(h, id, 0);
    return add((Kept){"gi", device, id, profile, at->start, at->size});
}
int nvmlGpuInstanceDestroy(void *h)
{
    Kept one;
    BEGIN(number_of(h));
    if (found("ci", (unsigned)number_of(h), instance_of(h), ~0u, &one))
        return IN_USE;
    return drop("gi", (unsigned)number_of(h), instance_of(h), ~0u);
}
static int listed(void *h, const char *kind, unsigned a, unsigned profile, void **to, unsigned *count)
{
    Kept all[KEPT_MAX];
    unsigned number = kept(all), room = *count;
    int is_gi = !strcmp(kind, "gi");
    *count = 0;
    for (unsigned i = 0; i < number; i++) {
        if (strcmp(all[i].kind, kind) || all[i].device != (unsigned)number_of(h) ||
            (is_gi ? all[i].b : all[i].c) != profile || (!is_gi && all[i].a != a))
            continue;
        if (*count == room)
            return INSUFFICIENT_SIZE;
        to[(*count)++] = is_gi ? part(h, all[i].a, 0) : part(h, a, all[i].b + 1);
    }
    return OK;
}
int nvmlDeviceGetGpuInstances(void *h, unsigned profile, void **to, unsigned *count)
{ BEGIN(number_of(h)); return listed(h, "gi", 0, profile, to, count); }
int nvmlGpuInstanceGetInfo(void *h, InstanceInfo *to)
{
    Kept one;
    BEGIN(number_of(h));
    if (!found("gi", (unsigned)number_of(h), instance_of(h), ~0u, &one))
        return NOT_FOUND;
    *to = (InstanceInfo){handle_of(number_of(h)), one.a, one.b, {one.c, one.d}};
    return OK;
}
static int slices_of(void *h, unsigned *to)
{
    Kept one;
    Shape profile;
    if (!found("gi", (unsigned)number_of(h), instance_of(h), ~0u, &one) ||
        !shape(number_of(h), -1, one.b, &profile))
        return NOT_FOUND;
    *to = profile.slices;
    return OK;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *h, unsigned number, unsigned engine,
                                                  ComputeProfileInfo *to)
{
    unsigned slices = 0;
    BEGIN(number_of(h));
    if (to->version != (sizeof *to | 2u << 24))
        return VERSION_MISMATCH;
    result = slices_of(h, &slices);
    if (result)
        return result;
    if (engine || number >= sizeof compute_slices / sizeof *compute_slices ||
        compute_slices[number] > slices)
        return NOT_SUPPORTED;
    to->id = number, to->slices = compute_slices[number];
    return OK;
}
int nvmlGpuInstanceGetComputeInstances(void *h, unsigned profile, void **to, unsigned *count)
{ BEGIN(number_of(h)); return listed(h, "ci", instance_of(h), profile, to, count); }
int nvmlGpuInstanceCreateComputeInstance(void *h, unsigned profile, void **to)
{
    Kept one;
    unsigned slices = 0, id = 0, device = (unsigned)number_of(h), instance = instance_of(h);
    BEGIN(number_of(h));
    result = slices_of(h, &slices);
    if (result)
        return result;
    if (profile >= sizeof compute_slices / sizeof *compute_slices || compute_slices[profile] > slices)
        return NOT_SUPPORTED;
    if (compute_slices[profile] == slices && found("ci", device, instance, ~0u, &one))
        return INSUFFICIENT_RESOURCES;
    while (found("ci", device, instance, id, &one))
        id++;
    *to = part(h, instance, id + 1);
    return add((Kept){"ci", device, instance, id, profile, 0});
}
int nvmlComputeInstanceDestroy(void *h)
{
    BEGIN(number_of(h));
    if (is_used(number_of(h)))
        return IN_USE;
    return drop("ci", (unsigned)number_of(h), instance_of(h), compute_of(h));
}
int nvmlComputeInstanceGetInfo_v2(void *h, ComputeInfo *to)
{
    Kept one;
    BEGIN(number_of(h));
    if (!found("ci", (unsigned)number_of(h), instance_of(h), compute_of(h), &one))
        return NOT_FOUND;
    *to = (ComputeInfo){handle_of(number_of(h)), part(h, one.a, 0), one.b, one.c, {0, 0}};
    return OK;
}
static int made_mig(int device, int which, unsigned *ids, unsigned long long *memory_mb, char *uuid,
                    char *name)
{
    Kept all[KEPT_MAX], instance;
    Shape profile;
    char whole[96] = "";
    unsigned count = kept(all), slices;
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(all[i].kind, "ci") || all[i].device != (unsigned)device || which--)
            continue;
        if (!found("gi", (unsigned)device, all[i].a, ~0u, &instance) ||
            !shape(device, -1, instance.b, &profile))
            return NOT_FOUND;
        slices = compute_slices[all[i].c];
        ids[0] = all[i].a, ids[1] = all[i].b, ids[2] = slices;
        *memory_mb = profile.memory_mb;
        snprintf(uuid, 96, "MIG-00000000-0000-%04u-%04u-%012u", ids[0], ids[1], (unsigned)device);
        text("name", device, whole, 24);
        if (slices == profile.slices)
            snprintf(name, 96, "%.24s MIG %.60s", whole, profile.name);
        else
            snprintf(name, 96, "%.24s MIG %uc.%.50s", whole, slices, profile.name);
        return OK;
    }
    return NOT_FOUND;
}
/* "mig-used:GI DEVICE BYTES": what an instance has taken. */
static int mig_memory(void *h, unsigned long long *to)
{
    unsigned ids[3] = {0, 0, 0};
    unsigned long long memory_mb = 0;
    char uuid[96], name[96], key[32];
    int result = mig(h, ids, &memory_mb, uuid, name);
    to[0] = memory_mb << 20, to[1] = to[2] = 0;
    snprintf(key, sizeof key, "mig-used:%u", ids[0]);
    long_value(key, number_of(h), to + 1);
    return result;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *to)
{
    BEGIN(number_of(h));
    *to = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **to)
{
    unsigned ids[3];
    unsigned long long memory_mb;
    char uuid[96], name[96];
    void *handle = (void *)((uintptr_t)h | (uintptr_t)(index + 1) << 8);
    BEGIN(number_of(h));
    if (index >= MIG_MAX || mig(handle, ids, &memory_mb, uuid, name))
        return NOT_FOUND;
    *to = handle;
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
