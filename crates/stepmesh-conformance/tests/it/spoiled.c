/*
 * The example backend, spoiled in one way. Which way is the name of the file that this library was
 * loaded from (`libstepmesh_backend_<way>.so`), so that one build makes all of them; what must be
 * known before loading is chosen by macros. spoiled.rs says which check catches which.
 */
#define _GNU_SOURCE
#define stepmesh_backend_query_v1 good_query
#include "../../../../plugins/example-c/example.c"
#undef stepmesh_backend_query_v1
/* The header makes the entry visible under any name. */
__asm__(".hidden good_query");

#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>

static char way[64];

static int is(const char *name) { return strcmp(way, name) == 0; }

#ifdef STATIC_TLS
__thread int fast __attribute__((tls_model("initial-exec")));
int *touch_fast(void) __attribute__((visibility("hidden")));
int *touch_fast(void) { return &fast; }
#endif

#ifdef UNDEFINED
int there_is_no_such_function(void);
#endif

#ifdef MORE_SYMBOLS
__attribute__((visibility("default"))) int one_more(void) { return 1; }
#endif

#ifdef CONSTRUCTOR
__attribute__((constructor)) static void early(void) { open("/dev/null", O_RDONLY); }
#endif

/* ---- lifecycle ------------------------------------------------------------------------------- */

static SmBackend *only;

static void *sleep_for_ever(void *arg)
{
  for (;;)
    pause();
  return arg;
}

static void crash(void) { *(volatile int *)8 = 1; }

static void on_term(int signal) { (void)signal; }

static int32_t sp_open(const SmHostApi *h, const SmOpenArgs *args, SmBackend **out, SmError *err)
{
  if (is("open_ignores_flags"))
    args = NULL;
  if (is("open_gives_the_same") && only != NULL) {
    *out = only;
    return SM_OK;
  }
  int32_t status = ex_open(h, args, out, err);
  only = *out;
  if (is("open_leaks_a_thread")) {
    pthread_t thread;
    pthread_create(&thread, NULL, sleep_for_ever, NULL);
  }
  if (is("open_leaks_a_file") && open("/dev/null", O_RDONLY) < 0)
    return SM_INTERNAL;
  if ((is("failed_copies_are_silent") || is("a_lost_device_lives_on")) && host.get_config != NULL) {
    static const char key[] = NAME ".faults";
    char value[8];
    uint32_t len;
    host.get_config(host.ctx, key, sizeof key - 1, value, sizeof value, &len);
  }
  if (is("exit_crashes"))
    atexit(crash);
  if (is("catches_sigterm"))
    signal(SIGTERM, on_term);
  if (is("changes_the_directory") && chdir("/") != 0)
    return SM_INTERNAL;
  return status;
}

static int32_t sp_close(SmBackend *s, SmError *err)
{
  if (is("late_close_fails") && host.process_exiting != NULL && host.process_exiting(host.ctx))
    return fail(err, SM_UNAVAILABLE, 0, 0, "the driver is gone");
  if (is("close_breaks_the_next"))
    exit(0);
  return ex_close(s, err);
}

static int32_t sp_quiesce(SmBackend *s, SmError *err)
{
  if (is("quiesce_does_nothing"))
    return SM_OK;
  return ex_quiesce(s, err);
}

/* ---- device ---------------------------------------------------------------------------------- */

static int32_t sp_device_count(SmBackend *s, uint32_t *n, SmError *err)
{
  if (is("device_count_crashes"))
    crash();
  static uint32_t calls;
  int32_t status = ex_device_count(s, n, err);
  if (is("device_count_grows") && status == SM_OK)
    *n += calls++;
  return status;
}

static int32_t sp_device_info(SmBackend *s, uint32_t dev, SmDeviceInfo *out, SmError *err)
{
  if (is("device_info_takes_any") && dev > 0)
    dev = 0;
  int32_t status = ex_device_info(s, dev, out, err);
  if (status != SM_OK || out->hdr.struct_size < sizeof *out)
    return status;
  if (is("wrong_ordinal"))
    out->ordinal = 7;
  if (is("wrong_numa_node"))
    out->numa_node = 77;
  if (is("wrong_torch_name"))
    strcpy(out->torch_device_type, "gpu");
  return status;
}

static int32_t sp_capabilities(SmBackend *s, uint32_t dev, uint64_t *bits, SmError *err)
{
  int32_t status = ex_capabilities(s, dev, bits, err);
  if (status != SM_OK)
    return status;
  if (is("claims_rdma"))
    *bits |= SM_CAP_DMABUF_DEFAULT;
  if (is("rdma_takes_any_scope"))
    *bits |= SM_CAP_FLUSH_RDMA;
  if (is("claims_mem_events"))
    *bits |= SM_CAP_MEMEVENT;
  if (is("pinned_is_not_there"))
    *bits |= SM_CAP_PINNED_HOST;
  if (is("calls_twice") || is("calls_too_early"))
    *bits |= SM_CAP_HOST_FUNC;
  if (is("time_runs_backwards"))
    *bits |= SM_CAP_TIMING;
  return status;
}

static int32_t sp_set_current_device(SmBackend *s, uint32_t dev, SmError *err)
{
  if (is("set_current_device_takes_any")) {
    current_device = (int32_t)dev;
    return SM_OK;
  }
  return ex_set_current_device(s, dev, err);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int32_t sp_alloc(SmBackend *s, uint32_t dev, uint64_t size, uint64_t align, uint32_t kind,
                        uint32_t flags, uint64_t *ptr, SmError *err)
{
  if (is("alloc_prints"))
    printf("allocating\n");
  if (is("alloc_logs_unasked") && host.log != NULL)
    host.log(host.ctx, SM_LOG_INFO, "x", 1, "x", 1, 1, "alloc", 5);
  if (is("alloc_changes_the_device"))
    current_device = 5;
  if (is("alloc_ignores_alignment"))
    align = 0;
  if (is("alloc_shrinks") && size > 5000)
    size -= 1;
  if (is("alloc_knows_all_flags") || is("ipc_descriptor_is_inherited"))
    flags &= SM_ALLOC_RDMA;
  if (is("log_under_lock")) {
    pthread_mutex_lock(&s->lock);
    log_info("allocating");
    pthread_mutex_unlock(&s->lock);
  }
  if (is("config_under_lock") && host.get_config != NULL) {
    char value[8];
    uint32_t len;
    pthread_mutex_lock(&s->lock);
    host.get_config(host.ctx, "a", 1, value, sizeof value, &len);
    pthread_mutex_unlock(&s->lock);
  }
  if (is("out_of_memory_is_internal") && size > (1ull << 60))
    return fail(err, SM_INTERNAL, 0, 0, "something went wrong");
  return ex_alloc(s, dev, size, align, kind, flags, ptr, err);
}

static int32_t sp_free(SmBackend *s, uint32_t dev, uint64_t ptr, SmError *err)
{
  if (is("free_takes_all")) {
    ex_free(s, dev, ptr, NULL);
    return SM_OK;
  }
  if (is("free_leaks"))
    return SM_OK;
  if (is("free_in_its_thread") && getpid() != gettid())
    return fail(err, SM_FAILED_PRECONDITION, 0, 0, "not allocated in this thread");
  return ex_free(s, dev, ptr, err);
}

static int32_t sp_pointer_attributes(SmBackend *s, uint64_t ptr, SmPtrAttr *out, SmError *err)
{
  int32_t status = ex_pointer_attributes(s, ptr, out, err);
  if (status != SM_OK)
    return status;
  if (is("alloc_id_reused") && out->alloc_id != 0)
    out->alloc_id = out->base;
  if (is("only_the_first_byte_is_known") && ptr != out->base)
    out->alloc_id = out->base = out->size = 0;
  if (is("unknown_memory_is_an_error") && out->kind == SM_MEMORY_UNKNOWN)
    return invalid(err, "who knows", ptr);
  return status;
}

static int32_t sp_host_register(SmBackend *s, void *ptr, uint64_t size, uint32_t flags,
                                uint64_t *dptr, SmError *err)
{
  (void)s, (void)size, (void)flags, (void)err;
  *dptr = (uintptr_t)ptr;
  return SM_OK;
}

static int32_t sp_host_unregister(SmBackend *s, void *ptr, SmError *err)
{
  (void)s, (void)ptr, (void)err;
  return SM_OK;
}

static int32_t sp_mem_info(SmBackend *s, uint32_t dev, uint64_t *free_len, uint64_t *total,
                           SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  *free_len = 2ull << 30;
  *total = 1ull << 30;
  return SM_OK;
}

static int32_t sp_memcpy_async(SmBackend *s, uint64_t dst, uint64_t src, uint64_t size,
                               uint32_t dir, uint32_t dst_dev, uint32_t src_dev,
                               uint32_t stream_dev, uint64_t stream, SmError *err)
{
  if (is("memcpy_drops_a_byte") && size > 1000)
    size -= 1;
  if (is("empty_copies_are_refused") && size == 0)
    return invalid(err, "nothing to copy", size);
  if (is("any_stream_will_do"))
    stream = SM_STREAM_LEGACY;
  static uint64_t count, late_dst, late_src, late_size;
  if (is("copies_change_places") && size == 40000 && ++count == 32) {
    /* The last but one comes last. */
    late_dst = dst, late_src = src, late_size = size;
    return SM_OK;
  }
  int32_t status = ex_memcpy_async(s, dst, src, size, dir, dst_dev, src_dev, stream_dev, stream, err);
  if (late_size != 0) {
    memcpy((void *)(uintptr_t)late_dst, (void *)(uintptr_t)late_src, late_size);
    late_size = 0;
  }
  return status;
}

static int32_t sp_memset_async(SmBackend *s, uint64_t dst, uint32_t value, uint32_t width,
                               uint64_t size, uint32_t dev, uint64_t stream, SmError *err)
{
  if (is("memset_knows_bytes_only") && (width == 2 || width == 4))
    width = 1;
  return ex_memset_async(s, dst, value, width, size, dev, stream, err);
}

/* ---- streams and events ----------------------------------------------------------------------- */

/* Functions of the host that have not come back yet, of all streams. */
static int running;
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t running_change = PTHREAD_COND_INITIALIZER;

struct call {
  void (*func)(void *);
  void *arg;
};

static void *make_call(void *arg)
{
  struct call call = *(struct call *)arg;
  free(arg);
  if (is("calls_too_early"))
    usleep(1000);
  call.func(call.arg);
  if (is("calls_twice"))
    call.func(call.arg);
  pthread_mutex_lock(&running_lock);
  running -= 1;
  pthread_cond_broadcast(&running_change);
  pthread_mutex_unlock(&running_lock);
  return NULL;
}

/* In a thread of its own: other work does not wait for it, but events and waits do. */
static int32_t sp_launch_host_func(SmBackend *s, uint32_t dev, uint64_t stream,
                                   void (*func)(void *), void *arg, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_stream(s, dev, stream, err));
  if (func == NULL)
    return invalid(err, "the function is null", 0);
  struct call *call = malloc(sizeof *call);
  *call = (struct call){ func, arg };
  pthread_mutex_lock(&running_lock);
  running += 1;
  pthread_mutex_unlock(&running_lock);
  pthread_t thread;
  pthread_create(&thread, NULL, make_call, call);
  pthread_detach(thread);
  return SM_OK;
}

static void wait_for_calls(void)
{
  pthread_mutex_lock(&running_lock);
  while (running > 0)
    pthread_cond_wait(&running_change, &running_lock);
  pthread_mutex_unlock(&running_lock);
}

static int has_calls(void) { return is("event_sync_never_times_out") || is("calls_twice")
                                    || is("calls_too_early") || is("events_stay_where_they_are")
                                    || is("mem_event_comes_early"); }

static int32_t sp_stream_query(SmBackend *s, uint32_t dev, uint64_t stream, uint32_t *done,
                               SmError *err)
{
  while (is("stream_query_hangs"))
    pause();
  return ex_stream_query(s, dev, stream, done, err);
}

static int32_t sp_stream_sync(SmBackend *s, uint32_t dev, uint64_t stream, uint64_t timeout_ns,
                              SmError *err)
{
  if (has_calls())
    wait_for_calls();
  return ex_stream_sync(s, dev, stream, timeout_ns, err);
}

static int32_t sp_event_create(SmBackend *s, uint32_t dev, uint32_t flags, SmEvent **out,
                               SmError *err)
{
  static int count;
  if (is("few_events") && ++count > 500)
    return fail(err, SM_RESOURCE_EXHAUSTED, 0, 0, "no more than 500 events");
  if (is("time_runs_backwards"))
    flags &= ~(uint32_t)SM_EVENT_TIMING;
  return ex_event_create(s, dev, flags, out, err);
}

static int32_t sp_event_destroy(SmBackend *s, SmEvent *event, SmError *err)
{
  if (is("destroy_of_pending_fails") && event != NULL)
    return fail(err, SM_FAILED_PRECONDITION, 0, 0, "the event is pending");
  return ex_event_destroy(s, event, err);
}

static int32_t sp_event_query(SmBackend *s, SmEvent *event, uint32_t *state, SmError *err)
{
  int32_t status = ex_event_query(s, event, state, err);
  if (status == SM_OK && is("unrecorded_is_pending"))
    *state = SM_EVENT_PENDING;
  if (status == SM_OK && has_calls() && running > 0)
    *state = SM_EVENT_PENDING;
  if (status == SM_OK && is("events_stay_where_they_are"))
    *state = SM_EVENT_DONE;
  return status;
}

static int32_t sp_event_sync(SmBackend *s, SmEvent *event, uint64_t timeout_ns, uint32_t wait,
                             SmError *err)
{
  if (has_calls())
    wait_for_calls();
  return ex_event_sync(s, event, timeout_ns, wait, err);
}

static int32_t sp_event_elapsed(SmBackend *s, SmEvent *start, SmEvent *end, double *ms, SmError *err)
{
  (void)s, (void)start, (void)end, (void)err;
  *ms = -1;
  return SM_OK;
}

static int32_t sp_last_error(SmBackend *s, SmError *err)
{
  (void)s;
  static SmError shared;
  if (last_failure.code != SM_OK)
    shared = last_failure;
  copy_failure(err, &shared);
  return shared.code;
}

static uint64_t word;

static int32_t me_create(SmBackend *s, uint32_t dev, SmMemEvent **out, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  *out = (SmMemEvent *)&word;
  return SM_OK;
}

static int32_t me_destroy(SmBackend *s, SmMemEvent *event, SmError *err)
{
  (void)event;
  return admit(s, ENDING, err);
}

static int32_t me_arm(SmBackend *s, SmMemEvent *event, uint32_t dev, uint64_t stream, uint64_t seq,
                      SmError *err)
{
  (void)event;
  TRY(check_stream(s, dev, stream, err));
  __atomic_store_n(&word, seq, __ATOMIC_RELEASE);
  return SM_OK;
}

static int32_t me_poll_addr(SmBackend *s, SmMemEvent *event, const uint64_t **addr, SmError *err)
{
  (void)event;
  *addr = &word;
  return admit(s, OPEN, err);
}

static int32_t me_query(SmBackend *s, SmMemEvent *event, uint32_t *state, SmError *err)
{
  (void)event;
  *state = SM_EVENT_DONE;
  return admit(s, OPEN, err);
}

static int32_t ipc_export(SmBackend *s, uint32_t dev, uint64_t ptr, uint64_t size, SmIpcHandle *out,
                          SmError *err)
{
  (void)ptr;
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  out->kind = SM_IPC_FD;
  out->fd = dup(1);
  out->len = size;
  return SM_OK;
}

static int32_t rd_export(SmBackend *s, uint32_t dev, uint64_t ptr, uint64_t size, uint32_t mapping,
                         int32_t *fd, uint64_t *offset, uint64_t *len, SmError *err)
{
  (void)ptr;
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  if (mapping > SM_DMABUF_PCIE)
    return invalid(err, "no such mapping", mapping);
  if (!is("rdma_takes_any_mapping"))
    return fail(err, SM_UNIMPLEMENTED, 0, 0, "register the address itself");
  *fd = dup(1);
  *offset = 0;
  *len = size;
  return SM_OK;
}

static int32_t rd_close(SmBackend *s, int32_t fd, SmError *err)
{
  TRY(admit(s, ENDING, err));
  return close(fd) == 0 ? SM_OK : invalid(err, "not open", (uint64_t)fd);
}

static int32_t rd_caps(SmBackend *s, uint32_t dev, SmRdmaCaps *out, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  if (out->hdr.struct_size < sizeof *out)
    return invalid(err, "a struct of another version", out->hdr.struct_size);
  out->flush_scopes = 1u << SM_RDMA_FLUSH_OWNER;
  return SM_OK;
}

static int32_t rd_flush(SmBackend *s, uint32_t dev, uint32_t scope, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  if (scope == SM_RDMA_FLUSH_ALL_DEVICES)
    return fail(err, SM_UNIMPLEMENTED, 0, 0, "there is one device");
  return SM_OK;
}

static int32_t rd_sync_memops(SmBackend *s, uint64_t ptr, SmError *err)
{
  (void)ptr;
  TRY(admit(s, OPEN, err));
  return fail(err, SM_UNIMPLEMENTED, 0, 0, "copies are synchronous as they are");
}

static int32_t rd_invalidate(SmBackend *s, void (*func)(void *, uint64_t), void *ctx, SmError *err)
{
  (void)func, (void)ctx;
  return admit(s, OPEN, err);
}

static int has_rdma(void) { return is("rdma_takes_any_mapping") || is("rdma_takes_any_scope")
                                   || is("invalidation_never_comes"); }

static int32_t sp_get_extension(SmBackend *s, const char *id, uint32_t id_len, uint32_t min_version,
                                const void **table, uint32_t *version, SmError *err)
{
  static const char text[] = "no header at all, but text";
  static const SmMemEventV1 mem_events = { SM_HDR(SmMemEventV1), me_create, me_destroy, me_arm,
                                           me_poll_addr, me_query };
  static const SmRdmaV1 rdma = { SM_HDR(SmRdmaV1), rd_export, rd_close, rd_caps, rd_flush,
                                 rd_sync_memops, rd_invalidate };
  static const SmIpcV1 ipc = { SM_HDR(SmIpcV1), ipc_export, NULL, NULL };
  TRY(admit(s, OPEN, err));
  (void)id, (void)id_len, (void)min_version;
  *table = is("mem_event_comes_early") ? (const void *)&mem_events
           : has_rdma() ? (const void *)&rdma
           : is("ipc_descriptor_is_inherited") ? (const void *)&ipc : text + 1;
  *version = 1;
  return SM_OK;
}

/* ---- errors ---------------------------------------------------------------------------------- */

static int32_t bad_sync(SmBackend *s, uint32_t dev, SmError *err)
{
  if (dev == 0)
    return ex_device_sync(s, dev, err);
  if (is("error_is_never_null"))
    err->msg_len = 0;
  if (is("error_is_always_large") && err != NULL) {
    memset(err->msg, 'x', sizeof err->msg);
    err->msg_len = 100;
  }
  if (is("error_is_cut_in_silence")) {
    int32_t status = ex_device_sync(s, dev, err);
    if (err != NULL && err->struct_size >= offsetof(SmError, msg))
      err->flags &= ~(uint32_t)SM_ERROR_TRUNCATED;
    return status;
  }
  if (is("error_is_half_written") && err != NULL && err->struct_size >= sizeof *err) {
    int64_t before = err->native_code;
    int32_t status = ex_device_sync(s, dev, err);
    err->native_code = before;
    return status;
  }
  if (is("error_has_another_code") && err != NULL) {
    ex_device_sync(s, dev, err);
    return SM_NOT_FOUND;
  }
  return ex_device_sync(s, dev, err);
}

/* ---- the entry ------------------------------------------------------------------------------- */

static SmBackendApi spoiled, again;

static void fill(SmBackendApi *t)
{
  *t = api;
  t->open = sp_open;
  t->close = sp_close;
  t->quiesce = sp_quiesce;
  t->device_count = sp_device_count;
  t->device_info = sp_device_info;
  t->capabilities = sp_capabilities;
  t->set_current_device = sp_set_current_device;
  t->device_sync = bad_sync;
  t->alloc = sp_alloc;
  t->free = sp_free;
  t->pointer_attributes = sp_pointer_attributes;
  t->memcpy_async = sp_memcpy_async;
  t->memset_async = sp_memset_async;
  t->stream_query = sp_stream_query;
  t->stream_sync = sp_stream_sync;
  t->event_create = sp_event_create;
  t->event_destroy = sp_event_destroy;
  t->event_query = sp_event_query;
  t->event_sync = sp_event_sync;
  if (has_calls())
    t->launch_host_func = sp_launch_host_func;
  if (is("time_runs_backwards"))
    t->event_elapsed = sp_event_elapsed;
  if (is("registers_anything")) {
    t->host_register = sp_host_register;
    t->host_unregister = sp_host_unregister;
  }
  if (is("more_free_than_there_is"))
    t->mem_info = sp_mem_info;
  if (is("last_error_is_shared"))
    t->last_error = sp_last_error;
  if (is("extension_without_header") || is("mem_event_comes_early")
      || is("ipc_descriptor_is_inherited") || has_rdma())
    t->get_extension = sp_get_extension;
  if (is("table_has_an_odd_size"))
    t->hdr.struct_size += 4;
  if (is("table_lacks_alloc"))
    t->alloc = NULL;
}

__attribute__((visibility("default")))
const SmBackendApi *stepmesh_backend_query_v1(const SmHostApi *h, SmError *err)
{
  static const SmPluginInfo no_text = { SM_HDR(SmPluginInfo), SM_STR("exa\0ple"), SM_STR(VERSION),
                                        SM_STR(""), SM_STR("") };
  static const SmPluginInfo other = { SM_HDR(SmPluginInfo), SM_STR("other"), SM_STR(VERSION),
                                      SM_STR(""), SM_STR("") };
  Dl_info self;
  if (dladdr((void *)stepmesh_backend_query_v1, &self) != 0) {
    const char *name = strstr(self.dli_fname, "libstepmesh_backend_");
    size_t len = name == NULL ? 0 : strcspn(name + 20, ".");
    memcpy(way, name == NULL ? "" : name + 20, len < sizeof way ? len : 0);
  }
  if (is("query_opens_a_file") && open("/dev/null", O_RDONLY) < 0)
    return NULL;
  if (is("query_wants_the_same_minor") && h->hdr.abi_minor != SM_ABI_MINOR)
    return NULL;
  if (is("query_wants_the_same_size") && h->hdr.struct_size != sizeof *h)
    return NULL;
  if (is("query_reads_beyond_the_host")) {
    volatile const uint64_t *beyond = (const uint64_t *)((const char *)h + h->hdr.struct_size);
    if (*beyond == 1)
      return NULL;
  }
  if (good_query(h, err) == NULL)
    return NULL;
#ifdef UNDEFINED
  there_is_no_such_function();
#endif
  SmBackendApi *table = &spoiled;
  if (is("query_gives_another_table") && spoiled.probe != NULL)
    table = &again;
  fill(table);
  if (is("name_with_a_nul"))
    table->info = &no_text;
  if (is("table_has_another_name"))
    table->info = &other;
  return table;
}
