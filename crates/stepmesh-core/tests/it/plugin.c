/*
 * A plugin for the loader's tests, written against nothing but the header. Macros on the compiler's
 * command line change its name and spoil it in one way each; see zoo.rs.
 */
#include "stepmesh_backend.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef NAME
#define NAME "zoo"
#endif
#ifndef ALIASES
#define ALIASES ""
#endif
#ifndef VERSION
#define VERSION "1.0.0"
#endif
#ifndef KIND
#define KIND SM_KIND_ACCELERATOR
#endif
#ifndef PRIORITY
#define PRIORITY 0
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef TABLE_NAME
#define TABLE_NAME NAME
#endif
#ifndef TABLE_MAJOR
#define TABLE_MAJOR 1
#endif
#ifndef SIZE
#define SIZE sizeof(SmBackendApi)
#endif

/*
 * NEXT makes it a plugin of the next minor version, in which the tables and the device's description
 * have grown at their ends.
 */
#ifdef NEXT
#undef SM_ABI_MINOR
#define SM_ABI_MINOR 1
typedef struct {
  SmBackendApi known;
  int32_t (*next_slot)(SmBackend *s, uint32_t *out, SmError *err);
} Api;
typedef struct {
  SmHostApi known;
  uint32_t (*next)(void *ctx);
} Host;
typedef struct {
  SmDeviceInfo known;
  uint64_t next;
} Info;
#endif

#ifdef NOTE_MAJOR
#undef SM_ABI_MAJOR
#define SM_ABI_MAJOR NOTE_MAJOR
#endif
#ifndef NO_NOTE
SM_BACKEND_NOTE(NAME, ALIASES, VERSION, KIND, 0, PRIORITY);
#endif

/* Leaves a byte for each time it runs: shows what was loaded, and how often. */
static void mark(const char *what)
{
#ifdef MARKER
  char path[512];
  snprintf(path, sizeof path, "%s.%s", MARKER, what);
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (fd >= 0) {
    if (write(fd, "x", 1) != 1)
      abort();
    close(fd);
  }
#else
  (void)what;
#endif
}

#ifdef TLS
__thread char large[4096];
char *touch_tls(void);
char *touch_tls(void) { return large; }
#endif

#ifndef CONSTRUCTOR
#define CONSTRUCTOR
#endif
__attribute__((constructor)) static void loaded(void)
{
  mark("loaded");
  CONSTRUCTOR;
}

static const SmHostApi *host;

static int32_t fail(SmError *err, int32_t code, const char *msg)
{
  if (err != 0 && err->struct_size >= sizeof(SmError)) {
    err->code = code;
    err->msg_len = (uint32_t)strlen(msg);
    memcpy(err->msg, msg, err->msg_len);
  }
  return code;
}

static int32_t probe(uint32_t *n, uint32_t *score, SmError *err)
{
  (void)err;
  *n = DEVICES;
  *score = DEVICES > 0;
  return SM_OK;
}

static int32_t open_backend(const SmHostApi *h, const SmOpenArgs *args, SmBackend **out, SmError *err)
{
  (void)h;
  (void)args;
#ifdef OPEN_FAILS
  return fail(err, SM_INTERNAL, OPEN_FAILS);
#else
  (void)err;
  mark("opened");
  *out = malloc(1);
  return SM_OK;
#endif
}

static int32_t close_backend(SmBackend *s, SmError *err)
{
  (void)err;
  mark("closed");
  free(s);
  return SM_OK;
}

static int32_t device_count(SmBackend *s, uint32_t *n, SmError *err)
{
  (void)s;
  (void)err;
#ifdef COUNT
  *n = COUNT;
#else
  *n = DEVICES;
#endif
  return SM_OK;
}

static uint32_t config(const char *key, char *buf, uint32_t cap)
{
  uint32_t len = 0;
  int32_t status = host->get_config(host->ctx, key, (uint32_t)strlen(key), buf, cap, &len);
  return status == SM_OK ? len : 0;
}

/* The device's name is what the host says of two keys, one of which it must not tell. */
static int32_t device_info(SmBackend *s, uint32_t dev, SmDeviceInfo *out, SmError *err)
{
  (void)s;
  (void)err;
  out->ordinal = (int32_t)dev;
  uint32_t len = config("transport.kind", out->name, sizeof out->name);
  config("mesh.token", out->name + len, (uint32_t)sizeof out->name - len);
#ifdef NEXT
  if (out->hdr.struct_size >= sizeof(Info))
    ((Info *)out)->next = 7;
#endif
  return SM_OK;
}

#ifdef NEXT
/* One more than what the host's new function says, if the host has it. */
static int32_t next_slot(SmBackend *s, uint32_t *out, SmError *err)
{
  (void)s;
  (void)err;
  *out = 1;
  if (host->hdr.struct_size >= sizeof(Host) && ((const Host *)host)->next != 0)
    *out += ((const Host *)host)->next(host->ctx);
  return SM_OK;
}
#endif

/* Says something and reports a failure, as a driver's own thread would. */
static int32_t device_sync(SmBackend *s, uint32_t dev, SmError *err)
{
  (void)s;
  (void)err;
  static const char said[] = "the fan is off", target[] = "zoo";
  if (host->log_enabled(host->ctx, SM_LOG_WARN, target, 3))
    host->log(host->ctx, SM_LOG_WARN, target, 3, __FILE__, sizeof __FILE__ - 1, __LINE__, said,
              sizeof said - 1);
  SmError failure = { sizeof failure, 0, 0, 0, 0, { 0 } };
  fail(&failure, SM_DATA_LOSS, "a page was lost");
  failure.native_code = 77;
  host->report_async_error(host->ctx, dev, &failure);
  host->report_async_error(host->ctx, dev, &failure);
  return SM_OK;
}

static int32_t unused(void) { return SM_UNIMPLEMENTED; }

static const SmPluginInfo info = { SM_HDR(SmPluginInfo), SM_STR(TABLE_NAME), SM_STR(VERSION),
                                   SM_STR("tests"), SM_STR("") };
#ifdef NEXT
static Api next = { .next_slot = next_slot };
#define api next.known
#undef SIZE
#define SIZE sizeof next
#else
static SmBackendApi api;
#endif

#ifdef UNDEFINED
int there_is_no_such_function(void);
#endif

#ifdef NO_SYMBOL
const SmBackendApi *another_name(const SmHostApi *h, SmError *err)
#else
const SmBackendApi *stepmesh_backend_query_v1(const SmHostApi *h, SmError *err)
#endif
{
  (void)err;
  mark("asked");
#ifdef UNDEFINED
  there_is_no_such_function();
#endif
#ifdef QUERY_NULL
  fail(err, SM_FAILED_PRECONDITION, QUERY_NULL);
  return 0;
#endif
  host = h;
  api.hdr.struct_size = (uint32_t)(SIZE);
  api.hdr.abi_major = TABLE_MAJOR;
  api.hdr.abi_minor = SM_ABI_MINOR;
  api.info = &info;
  api.probe = probe;
  api.open = open_backend;
  api.close = close_backend;
  api.device_count = device_count;
  api.device_info = device_info;
  api.device_sync = device_sync;
  api.capabilities = (void *)unused;
  api.set_current_device = (void *)unused;
  api.get_current_device = (void *)unused;
#ifndef NO_ALLOC
  api.alloc = (void *)unused;
#endif
  api.free = (void *)unused;
  api.pointer_attributes = (void *)unused;
  api.stream_create = (void *)unused;
  api.stream_destroy = (void *)unused;
  api.stream_sync = (void *)unused;
  api.stream_query = (void *)unused;
  api.stream_wait_event = (void *)unused;
  api.memcpy_async = (void *)unused;
  api.event_create = (void *)unused;
  api.event_destroy = (void *)unused;
  api.event_record = (void *)unused;
  api.event_query = (void *)unused;
  api.event_sync = (void *)unused;
  return &api;
}
