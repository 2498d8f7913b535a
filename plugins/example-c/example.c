/*
 * A StepMesh backend in C: one device whose memory is the host's. It needs the header and the C
 * library, nothing else, and is meant to be copied: `cargo xtask new-plugin NAME --c`.
 *
 * Built with -DEXAMPLE_COMPUTE it also has two operations of stepmesh.compute.v1, see compute.c.
 *
 * Streams are synchronous: work is done before the slot that submits it returns, so nothing is ever
 * pending and every wait is over at once. Optional slots that are not here are null; the host stands
 * in for them.
 */
#define _POSIX_C_SOURCE 200809L
#include "stepmesh_backend.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "example-c"
#define VERSION "0.1.0"

/* All that a host learns of the plugin before any of its code runs. */
SM_BACKEND_NOTE(NAME, "", VERSION, SM_KIND_ACCELERATOR, 0, 0);

/* Allocations, streams and events: what the host holds handles of. */
struct item {
  struct item *next;
  uint64_t key; /* the handle: an address that is not used twice while it is live */
  uint64_t size;
  uint64_t id;
};

struct SmBackend {
  pid_t pid;
  pthread_mutex_t lock; /* never held while the host is called */
  int quiesced;
  struct item *blocks, *streams, *events;
};

enum phase { OPEN, ENDING };

/* The host's functions as far as both sides know them; the rest is null. */
static SmHostApi host;
/* Names allocations for the life of the process, also when several instances are open. */
static uint64_t last_id;
static pthread_mutex_t id_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local SmError last_failure;
static _Thread_local int32_t current_device;

/* Every block is a multiple of this long and starts at one. */
enum { GRANULARITY = 64, MESSAGE_MAX = sizeof(((SmError *)0)->msg) };

/* ---- errors and the log ---------------------------------------------------------------------- */

/* Tells the caller as much as its struct has room for, and writes no byte beyond. */
static void copy_failure(SmError *err, const SmError *from)
{
  if (err == NULL || err->struct_size < offsetof(SmError, msg))
    return;
  uint32_t room = err->struct_size - (uint32_t)offsetof(SmError, msg);
  uint32_t len = from->msg_len < room ? from->msg_len : room;
  err->code = from->code;
  err->native_code = from->native_code;
  err->flags = from->flags | (len < from->msg_len ? SM_ERROR_TRUNCATED : 0);
  err->msg_len = len;
  memcpy(err->msg, from->msg, len);
}

__attribute__((format(printf, 5, 6)))
static int32_t fail(SmError *err, int32_t code, uint32_t flags, int native, const char *format, ...)
{
  char text[MESSAGE_MAX + 1];
  va_list args;
  va_start(args, format);
  int len = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  SmError *last = &last_failure;
  last->struct_size = sizeof *last;
  last->code = code;
  last->native_code = native;
  last->flags = flags | (len > MESSAGE_MAX ? SM_ERROR_TRUNCATED : 0);
  last->msg_len = len < 0 ? 0 : len > MESSAGE_MAX ? MESSAGE_MAX : (uint32_t)len;
  memcpy(last->msg, text, last->msg_len);
  copy_failure(err, last);
  return code;
}

static int32_t invalid(SmError *err, const char *what, uint64_t value)
{
  return fail(err, SM_INVALID_ARGUMENT, 0, 0, NAME ": %s (%#llx)", what,
              (unsigned long long)value);
}

static void log_info(const char *message)
{
  static const char target[] = "stepmesh::" NAME;
  uint32_t target_len = sizeof target - 1;
  if (host.log != NULL && host.log_enabled != NULL
      && host.log_enabled(host.ctx, SM_LOG_INFO, target, target_len))
    host.log(host.ctx, SM_LOG_INFO, target, target_len, __FILE__, sizeof __FILE__ - 1, __LINE__,
             message, (uint32_t)strlen(message));
}

/* ---- what every slot checks ------------------------------------------------------------------ */

static int32_t admit(SmBackend *s, enum phase phase, SmError *err)
{
  if (s == NULL)
    return invalid(err, "the instance is null", 0);
  if (s->pid != getpid())
    return fail(err, SM_FAILED_PRECONDITION, 0, 0,
                NAME ": this instance belongs to process %d; a forked child must open its own",
                (int)s->pid);
  pthread_mutex_lock(&s->lock);
  int quiesced = s->quiesced;
  pthread_mutex_unlock(&s->lock);
  if (quiesced && phase == OPEN)
    return fail(err, SM_FAILED_PRECONDITION, 0, 0, NAME ": this instance was quiesced");
  return SM_OK;
}

static int32_t check_device(uint32_t dev, SmError *err)
{
  if (dev == 0)
    return SM_OK;
  return fail(err, SM_INVALID_ARGUMENT, 0, 0, NAME ": device %u does not exist; there is device 0",
              dev);
}

static struct item *find(struct item *list, uint64_t key)
{
  while (list != NULL && list->key != key)
    list = list->next;
  return list;
}

static struct item *take(struct item **list, uint64_t key)
{
  while (*list != NULL && (*list)->key != key)
    list = &(*list)->next;
  struct item *found = *list;
  if (found != NULL)
    *list = found->next;
  return found;
}

static int has(SmBackend *s, struct item **list, uint64_t key)
{
  pthread_mutex_lock(&s->lock);
  int found = find(*list, key) != NULL;
  pthread_mutex_unlock(&s->lock);
  return found;
}

static void add(SmBackend *s, struct item **list, struct item *item)
{
  pthread_mutex_lock(&s->lock);
  item->next = *list;
  *list = item;
  pthread_mutex_unlock(&s->lock);
}

static int32_t check_stream(SmBackend *s, uint32_t dev, uint64_t stream, SmError *err)
{
  int32_t status = check_device(dev, err);
  if (status != SM_OK)
    return status;
  if (stream == SM_STREAM_LEGACY || stream == SM_STREAM_PER_THREAD || has(s, &s->streams, stream))
    return SM_OK;
  return invalid(err, "this stream does not exist", stream);
}

static int32_t check_event(SmBackend *s, const SmEvent *event, SmError *err)
{
  if (event != NULL && has(s, &s->events, (uintptr_t)event))
    return SM_OK;
  return invalid(err, "this event does not exist", (uintptr_t)event);
}

/* Fills the caller's struct up to the smaller of both sizes, and says how far. */
static int32_t put(void *out, void *filled, uint32_t size, SmError *err)
{
  if (out == NULL || ((SmHdr *)out)->struct_size < sizeof(SmHdr))
    return invalid(err, "the out struct is null or does not tell its size", 0);
  uint32_t theirs = ((SmHdr *)out)->struct_size;
  ((SmHdr *)filled)->struct_size = theirs < size ? theirs : size;
  memcpy(out, filled, ((SmHdr *)filled)->struct_size);
  return SM_OK;
}

/* Leaves the slot that it is written in when a check fails. */
#define TRY(check) do { int32_t status_ = (check); if (status_ != SM_OK) return status_; } while (0)
#define NOT_NULL(out) TRY((out) != NULL ? SM_OK : invalid(err, "an out pointer is null", 0))

#ifdef EXAMPLE_COMPUTE
#include "compute.c"
#endif

/* ---- the instance and its device ------------------------------------------------------------- */

static int32_t ex_probe(uint32_t *n_devices, uint32_t *score, SmError *err)
{
  NOT_NULL(n_devices);
  NOT_NULL(score);
  *n_devices = 1;
  *score = 1;
  return SM_OK;
}

static int32_t ex_open(const SmHostApi *h, const SmOpenArgs *args, SmBackend **out, SmError *err)
{
  (void)h; /* the table that `query` was given */
  NOT_NULL(out);
  if (args != NULL && args->hdr.struct_size >= sizeof *args && args->flags != 0)
    return invalid(err, "open flags are unknown", args->flags);
  SmBackend *s = calloc(1, sizeof *s);
  if (s == NULL || pthread_mutex_init(&s->lock, NULL) != 0) {
    free(s);
    return fail(err, SM_RESOURCE_EXHAUSTED, SM_ERROR_OOM, errno, NAME ": no memory to open");
  }
  s->pid = getpid();
  log_info("opened");
  *out = s;
  return SM_OK;
}

static int32_t ex_quiesce(SmBackend *s, SmError *err)
{
  TRY(admit(s, ENDING, err));
  pthread_mutex_lock(&s->lock);
  s->quiesced = 1;
  pthread_mutex_unlock(&s->lock);
  return SM_OK;
}

static void drop_all(struct item *list, int has_memory)
{
  while (list != NULL) {
    struct item *next = list->next;
    if (has_memory)
      free((void *)(uintptr_t)list->key);
    free(list);
    list = next;
  }
}

static int32_t ex_close(SmBackend *s, SmError *err)
{
  TRY(admit(s, ENDING, err));
#ifdef EXAMPLE_COMPUTE
  release_executables(s);
#endif
  drop_all(s->blocks, 1);
  drop_all(s->streams, 0);
  drop_all(s->events, 0);
  pthread_mutex_destroy(&s->lock);
  free(s);
  return SM_OK;
}

static int32_t ex_device_count(SmBackend *s, uint32_t *n, SmError *err)
{
  TRY(admit(s, OPEN, err));
  NOT_NULL(n);
  *n = 1;
  return SM_OK;
}

static int32_t ex_device_info(SmBackend *s, uint32_t dev, SmDeviceInfo *out, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  SmDeviceInfo info = { .hdr = SM_HDR(SmDeviceInfo) };
  info.physical_ordinal = -1;
  info.numa_node = -1;
  strcpy(info.name, "Example in C");
  strcpy(info.torch_device_type, "cpu");
  info.dlpack_type = SM_DLPACK_CPU;
  info.total_mem = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
  info.page_granularity = GRANULARITY;
  info.integrated = 1;
  info.rdma_write_ordering = SM_RDMA_ORDERING_ALL_DEVICES;
  return put(out, &info, sizeof info, err);
}

static int32_t ex_capabilities(SmBackend *s, uint32_t dev, uint64_t *bits, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  NOT_NULL(bits);
  *bits = SM_CAP_UVA | SM_CAP_CONCURRENT_CONTEXTS | SM_CAP_FORK_SAFE_PROBE;
  return SM_OK;
}

static int32_t ex_set_current_device(SmBackend *s, uint32_t dev, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  current_device = (int32_t)dev;
  return SM_OK;
}

static int32_t ex_get_current_device(SmBackend *s, int32_t *dev, SmError *err)
{
  TRY(admit(s, OPEN, err));
  NOT_NULL(dev);
  *dev = current_device;
  return SM_OK;
}

static int32_t ex_device_sync(SmBackend *s, uint32_t dev, SmError *err)
{
  TRY(admit(s, OPEN, err));
  return check_device(dev, err);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int32_t ex_alloc(SmBackend *s, uint32_t dev, uint64_t size, uint64_t align, uint32_t kind,
                        uint32_t flags, uint64_t *ptr, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  NOT_NULL(ptr);
  if (kind == SM_MEMORY_HOST_PINNED || kind == SM_MEMORY_MANAGED || (flags & SM_ALLOC_SHAREABLE))
    return fail(err, SM_UNIMPLEMENTED, 0, 0, NAME ": only device memory, and none to share");
  if (kind != SM_MEMORY_DEVICE)
    return invalid(err, "this kind of memory cannot be allocated", kind);
  if (flags & ~(uint32_t)SM_ALLOC_RDMA)
    return invalid(err, "alloc flags are unknown", flags);
  if (align & (align - 1))
    return invalid(err, "the alignment is not a power of two", align);
  if (size == 0) {
    *ptr = 0;
    return SM_OK;
  }
  uint64_t least = flags & SM_ALLOC_RDMA ? SM_RDMA_ALIGN_BYTES : GRANULARITY;
  align = align < least ? least : align;
  errno = 0;
  struct item *block = calloc(1, sizeof *block);
  /* A size that wraps when it is rounded up is more than there is, too. */
  uint64_t rounded = (size + align - 1) & ~(align - 1);
  void *memory = rounded < size ? NULL : aligned_alloc(align, rounded);
  if (block == NULL || memory == NULL) {
    int why = errno;
    free(block);
    free(memory);
    return fail(err, SM_RESOURCE_EXHAUSTED, SM_ERROR_OOM, why == 0 ? ENOMEM : why,
                NAME ": device 0 has no %llu bytes; free some or ask for less",
                (unsigned long long)size);
  }
  block->key = (uintptr_t)memory;
  block->size = size;
  pthread_mutex_lock(&id_lock);
  block->id = ++last_id;
  pthread_mutex_unlock(&id_lock);
  add(s, &s->blocks, block);
  *ptr = block->key;
  return SM_OK;
}

static int32_t ex_free(SmBackend *s, uint32_t dev, uint64_t ptr, SmError *err)
{
  TRY(admit(s, ENDING, err));
  TRY(check_device(dev, err));
  if (ptr == 0)
    return SM_OK;
  pthread_mutex_lock(&s->lock);
  struct item *block = take(&s->blocks, ptr);
  pthread_mutex_unlock(&s->lock);
  if (block == NULL)
    return invalid(err, "free: not the first address of a live allocation", ptr);
  free((void *)(uintptr_t)block->key);
  free(block);
  return SM_OK;
}

static int32_t ex_pointer_attributes(SmBackend *s, uint64_t ptr, SmPtrAttr *out, SmError *err)
{
  TRY(admit(s, OPEN, err));
  SmPtrAttr attr = { .hdr = SM_HDR(SmPtrAttr), .kind = SM_MEMORY_UNKNOWN, .device = -1 };
  pthread_mutex_lock(&s->lock);
  for (struct item *block = s->blocks; block != NULL; block = block->next) {
    if (ptr < block->key || ptr - block->key >= block->size)
      continue;
    attr.kind = SM_MEMORY_DEVICE;
    attr.device = 0;
    attr.base = block->key;
    attr.size = block->size;
    attr.alloc_id = block->id;
    attr.flags = SM_PTR_HOST_ACCESSIBLE;
  }
  pthread_mutex_unlock(&s->lock);
  return put(out, &attr, sizeof attr, err);
}

/* ---- streams --------------------------------------------------------------------------------- */

static int32_t ex_stream_create(SmBackend *s, uint32_t dev, int32_t priority, uint32_t flags,
                                uint64_t *stream, SmError *err)
{
  (void)priority; /* clamped to the one that there is */
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  NOT_NULL(stream);
  if (flags & ~(uint32_t)SM_STREAM_NON_BLOCKING)
    return invalid(err, "stream flags are unknown", flags);
  struct item *made = calloc(1, sizeof *made);
  if (made == NULL)
    return fail(err, SM_RESOURCE_EXHAUSTED, SM_ERROR_OOM, errno, NAME ": no memory for a stream");
  *stream = made->key = (uintptr_t)made;
  add(s, &s->streams, made);
  return SM_OK;
}

static int32_t ex_stream_destroy(SmBackend *s, uint32_t dev, uint64_t stream, SmError *err)
{
  TRY(admit(s, ENDING, err));
  TRY(check_device(dev, err));
  pthread_mutex_lock(&s->lock);
  struct item *ended = take(&s->streams, stream);
  pthread_mutex_unlock(&s->lock);
  if (ended == NULL)
    return invalid(err, "stream_destroy: no stream that was created", stream);
  free(ended);
  return SM_OK;
}

static int32_t ex_stream_sync(SmBackend *s, uint32_t dev, uint64_t stream, uint64_t timeout_ns,
                              SmError *err)
{
  (void)timeout_ns; /* nothing is pending */
  TRY(admit(s, OPEN, err));
  return check_stream(s, dev, stream, err);
}

static int32_t ex_stream_query(SmBackend *s, uint32_t dev, uint64_t stream, uint32_t *done,
                               SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_stream(s, dev, stream, err));
  NOT_NULL(done);
  *done = 1;
  return SM_OK;
}

static int32_t ex_stream_wait_event(SmBackend *s, uint32_t dev, uint64_t stream, SmEvent *event,
                                    SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_stream(s, dev, stream, err));
  return check_event(s, event, err);
}

static int32_t ex_memcpy_async(SmBackend *s, uint64_t dst, uint64_t src, uint64_t size,
                               uint32_t dir, uint32_t dst_dev, uint32_t src_dev,
                               uint32_t stream_dev, uint64_t stream, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_stream(s, stream_dev, stream, err));
  if (dir > SM_COPY_P2P)
    return invalid(err, "this direction is unknown", dir);
  /* The device argument of a host side is not looked at. */
  if (dir == SM_COPY_H2D || dir == SM_COPY_D2D || dir == SM_COPY_P2P)
    TRY(check_device(dst_dev, err));
  if (dir == SM_COPY_D2H || dir == SM_COPY_D2D || dir == SM_COPY_P2P)
    TRY(check_device(src_dev, err));
  if (size == 0)
    return SM_OK;
  if (dst == 0 || src == 0)
    return invalid(err, "a copy with a null address", size);
  memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, size);
  return SM_OK;
}

static int32_t ex_memset_async(SmBackend *s, uint64_t dst, uint32_t value, uint32_t width,
                               uint64_t size, uint32_t stream_dev, uint64_t stream, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_stream(s, stream_dev, stream, err));
  if (width != 1 && width != 2 && width != 4)
    return invalid(err, "the width is not 1, 2 or 4", width);
  if (dst % width != 0 || size % width != 0)
    return invalid(err, "address or size is not a multiple of the width", dst);
  if (size != 0 && dst == 0)
    return invalid(err, "a fill of address 0", size);
  for (uint64_t at = 0; at < size; at++)
    ((unsigned char *)(uintptr_t)dst)[at] = (unsigned char)(value >> (8 * (at % width)));
  return SM_OK;
}

/* ---- events: a mark in synchronous work is always reached ------------------------------------- */

static int32_t ex_event_create(SmBackend *s, uint32_t dev, uint32_t flags, SmEvent **out,
                               SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  NOT_NULL(out);
  if (flags & ~(uint32_t)(SM_EVENT_TIMING | SM_EVENT_IPC | SM_EVENT_BLOCKING | SM_EVENT_MEMSYNC))
    return invalid(err, "event flags are unknown", flags);
  if (flags & (SM_EVENT_TIMING | SM_EVENT_IPC))
    return fail(err, SM_UNIMPLEMENTED, 0, 0, NAME ": events have no timing and stay in a process");
  struct item *made = calloc(1, sizeof *made);
  if (made == NULL)
    return fail(err, SM_RESOURCE_EXHAUSTED, SM_ERROR_OOM, errno, NAME ": no memory for an event");
  made->key = (uintptr_t)made;
  add(s, &s->events, made);
  *out = (SmEvent *)made;
  return SM_OK;
}

static int32_t ex_event_destroy(SmBackend *s, SmEvent *event, SmError *err)
{
  TRY(admit(s, ENDING, err));
  if (event == NULL)
    return SM_OK;
  pthread_mutex_lock(&s->lock);
  struct item *ended = take(&s->events, (uintptr_t)event);
  pthread_mutex_unlock(&s->lock);
  if (ended == NULL)
    return invalid(err, "event_destroy: no live event", (uintptr_t)event);
  free(ended);
  return SM_OK;
}

static int32_t ex_event_record(SmBackend *s, SmEvent *event, uint32_t dev, uint64_t stream,
                               SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_stream(s, dev, stream, err));
  return check_event(s, event, err);
}

static int32_t ex_event_query(SmBackend *s, SmEvent *event, uint32_t *state, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_event(s, event, err));
  NOT_NULL(state);
  *state = SM_EVENT_DONE;
  return SM_OK;
}

static int32_t ex_event_sync(SmBackend *s, SmEvent *event, uint64_t timeout_ns, uint32_t wait,
                             SmError *err)
{
  (void)timeout_ns; /* nothing is pending */
  TRY(admit(s, OPEN, err));
  TRY(check_event(s, event, err));
  return wait > SM_WAIT_BLOCK ? invalid(err, "this wait mode is unknown", wait) : SM_OK;
}

static int32_t ex_last_error(SmBackend *s, SmError *err)
{
  (void)s;
  copy_failure(err, &last_failure);
  return last_failure.code;
}

/* ---- the table and the entry ----------------------------------------------------------------- */

static const SmPluginInfo plugin_info = { SM_HDR(SmPluginInfo), SM_STR(NAME), SM_STR(VERSION),
                                          SM_STR("StepMesh"), SM_STR("") };

static const SmBackendApi api = {
  .hdr = SM_HDR(SmBackendApi),
  .info = &plugin_info,
  .probe = ex_probe,
  .open = ex_open,
  .quiesce = ex_quiesce,
  .close = ex_close,
  .device_count = ex_device_count,
  .device_info = ex_device_info,
  .capabilities = ex_capabilities,
  .set_current_device = ex_set_current_device,
  .get_current_device = ex_get_current_device,
  .device_sync = ex_device_sync,
  .alloc = ex_alloc,
  .free = ex_free,
  .pointer_attributes = ex_pointer_attributes,
  .stream_create = ex_stream_create,
  .stream_destroy = ex_stream_destroy,
  .stream_sync = ex_stream_sync,
  .stream_query = ex_stream_query,
  .stream_wait_event = ex_stream_wait_event,
  .memcpy_async = ex_memcpy_async,
  .memset_async = ex_memset_async,
  .event_create = ex_event_create,
  .event_destroy = ex_event_destroy,
  .event_record = ex_event_record,
  .event_query = ex_event_query,
  .event_sync = ex_event_sync,
  .last_error = ex_last_error,
#ifdef EXAMPLE_COMPUTE
  .get_extension = ex_get_extension,
#endif
};

const SmBackendApi *stepmesh_backend_query_v1(const SmHostApi *h, SmError *err)
{
  if (h == NULL || h->hdr.abi_major != SM_ABI_MAJOR) {
    fail(err, SM_FAILED_PRECONDITION, 0, 0, NAME ": this host has no ABI %d", SM_ABI_MAJOR);
    return NULL;
  }
  /* A host may be older or newer than this plugin: read what both know. */
  SmHostApi known = { 0 };
  memcpy(&known, h, h->hdr.struct_size < sizeof known ? h->hdr.struct_size : sizeof known);
  host = known;
  return &api;
}
