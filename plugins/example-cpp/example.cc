/*
 * A StepMesh backend in C++17: one device whose memory is the host's. It needs the header and the
 * standard library, nothing else, and is meant to be copied: `cargo xtask new-plugin NAME --cpp`.
 *
 * The upper half is glue that any backend needs: no exception leaves a slot, one that was not
 * foreseen poisons its instance, errors go to the caller's struct. The lower half is the backend.
 * Streams are synchronous: work is done before the slot that submits it returns, so nothing is ever
 * pending and every wait is over at once. Optional slots that are not here are null; the host stands
 * in for them.
 */
#include "stepmesh_backend.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <unistd.h>

#define NAME "example-cpp"
#define VERSION "0.1.0"

/* All that a host learns of the plugin before any of its code runs. */
SM_BACKEND_NOTE(NAME, "", VERSION, SM_KIND_ACCELERATOR, 0, 0);

/*
 * Everything is in an unnamed namespace: also the standard templates that are made of these types
 * stay out of the table of exported symbols, of which a plugin has one.
 */
namespace {

/* ---- errors ---------------------------------------------------------------------------------- */

/* A number that messages show in hexadecimal. */
struct Hex {
  uint64_t number;
};

/* What a slot failed with. Thrown by the backend, caught by `guard`. */
struct Failure {
  int32_t code;
  uint32_t flags = 0;
  int native = 0;
  char message[sizeof(SmError::msg)] = {};
  uint32_t message_len = 0;

  template <class... Parts> explicit Failure(int32_t code, Parts... parts) : code(code)
  {
    add(NAME ": ");
    (add(parts), ...);
  }

  void add(const char *text)
  {
    for (; *text != 0; text++) {
      if (message_len == sizeof message) {
        flags |= SM_ERROR_TRUNCATED;
        return;
      }
      message[message_len++] = *text;
    }
  }

  void add(uint64_t number) { add_digits(number, 10); }

  void add(Hex address)
  {
    add("0x");
    add_digits(address.number, 16);
  }

  void add_digits(uint64_t number, unsigned base)
  {
    char digits[24];
    char *at = digits + sizeof digits;
    *--at = 0;
    do {
      *--at = "0123456789abcdef"[number % base];
      number /= base;
    } while (number != 0);
    add(at);
  }
};

[[noreturn]] void invalid(const char *what, uint64_t value)
{
  throw Failure(SM_INVALID_ARGUMENT, what, " (", Hex{value}, ")");
}

thread_local SmError last_failure;

/* Tells the caller as much as its struct has room for, and writes no byte beyond. */
void copy_failure(SmError *err, const SmError &from) noexcept
{
  if (err == nullptr || err->struct_size < offsetof(SmError, msg))
    return;
  const uint32_t room = err->struct_size - static_cast<uint32_t>(offsetof(SmError, msg));
  const uint32_t len = from.msg_len < room ? from.msg_len : room;
  err->code = from.code;
  err->native_code = from.native_code;
  err->flags = from.flags | (len < from.msg_len ? SM_ERROR_TRUNCATED : 0);
  err->msg_len = len;
  std::memcpy(err->msg, from.msg, len);
}

int32_t report(SmError *err, const Failure &failure) noexcept
{
  SmError &last = last_failure;
  last.struct_size = sizeof last;
  last.code = failure.code;
  last.native_code = failure.native;
  last.flags = failure.flags;
  last.msg_len = failure.message_len;
  std::memcpy(last.msg, failure.message, failure.message_len);
  copy_failure(err, last);
  return failure.code;
}

/* Runs the body of a slot: no exception gets past it. */
template <class Body> int32_t guard(SmError *err, std::atomic<bool> *poisoned, Body body) noexcept
{
  try {
    body();
    return SM_OK;
  } catch (const Failure &failure) {
    return report(err, failure);
  } catch (const std::bad_alloc &) {
    Failure failure(SM_RESOURCE_EXHAUSTED, "the host has no memory for bookkeeping");
    failure.flags = SM_ERROR_OOM;
    failure.native = ENOMEM;
    return report(err, failure);
  } catch (const std::exception &unforeseen) {
    if (poisoned != nullptr)
      *poisoned = true;
    return report(err, Failure(SM_INTERNAL, "an exception: ", unforeseen.what()));
  } catch (...) {
    if (poisoned != nullptr)
      *poisoned = true;
    return report(err, Failure(SM_INTERNAL, "an exception of unknown type"));
  }
}

template <class T> T &not_null(T *out)
{
  if (out == nullptr)
    throw Failure(SM_INVALID_ARGUMENT, "an out pointer is null");
  return *out;
}

/* Fills the caller's struct up to the smaller of both sizes, and says how far. */
template <class T> void put(T *out, T filled)
{
  const uint32_t theirs = not_null(out).hdr.struct_size;
  if (theirs < sizeof(SmHdr))
    invalid("the out struct does not tell its size", theirs);
  filled.hdr.struct_size = theirs < sizeof(T) ? theirs : static_cast<uint32_t>(sizeof(T));
  std::memcpy(static_cast<void *>(out), &filled, filled.hdr.struct_size);
}

/* ---- the host -------------------------------------------------------------------------------- */

/* The host's functions as far as both sides know them; the rest is null. */
SmHostApi host;

void log_info(const char *message) noexcept
{
  static const char target[] = "stepmesh::" NAME;
  const uint32_t target_len = sizeof target - 1;
  if (host.log != nullptr && host.log_enabled != nullptr
      && host.log_enabled(host.ctx, SM_LOG_INFO, target, target_len))
    host.log(host.ctx, SM_LOG_INFO, target, target_len, __FILE__, sizeof __FILE__ - 1, __LINE__,
             message, static_cast<uint32_t>(std::strlen(message)));
}

/* ---- the backend ----------------------------------------------------------------------------- */

enum class Phase { open, ending };

/* Every block is a multiple of this long and starts at one. */
constexpr uint64_t granularity = 64;
/* Names allocations for the life of the process, also when several instances are open. */
std::atomic<uint64_t> last_id{0};
thread_local int32_t current_device = 0;

struct Freed {
  void operator()(void *memory) const noexcept { std::free(memory); }
};

struct Block {
  std::unique_ptr<void, Freed> memory;
  uint64_t size;
  uint64_t id;
};

/* What a stream or an event is: nothing but an identity. */
struct Token {};

struct Instance {
  const pid_t pid = getpid();
  std::atomic<bool> quiesced{false};
  std::atomic<bool> poisoned{false};
  std::mutex lock; /* guards what follows; never held while the host is called */
  std::map<uint64_t, Block> blocks;
  std::map<Token *, std::unique_ptr<Token>> streams, events;

  void admit(Phase phase) const
  {
    if (pid != getpid())
      throw Failure(SM_FAILED_PRECONDITION, "this instance belongs to another process; a forked "
                                            "child must open its own");
    if (poisoned)
      throw Failure(SM_FAILED_PRECONDITION, "an exception put this instance out of use; close it");
    if (quiesced && phase == Phase::open)
      throw Failure(SM_FAILED_PRECONDITION, "this instance was quiesced");
  }

  static void check_device(uint32_t dev)
  {
    if (dev != 0)
      throw Failure(SM_INVALID_ARGUMENT, "device ", uint64_t{dev},
                    " does not exist; there is device 0");
  }

  void check_stream(uint32_t dev, uint64_t stream)
  {
    check_device(dev);
    const std::lock_guard<std::mutex> held(lock);
    if (stream != SM_STREAM_LEGACY && stream != SM_STREAM_PER_THREAD
        && streams.count(reinterpret_cast<Token *>(stream)) == 0)
      invalid("this stream does not exist", stream);
  }

  void check_event(SmEvent *event)
  {
    const std::lock_guard<std::mutex> held(lock);
    if (events.count(reinterpret_cast<Token *>(event)) == 0)
      invalid("this event does not exist", reinterpret_cast<uintptr_t>(event));
  }

  Token *add(std::map<Token *, std::unique_ptr<Token>> &to)
  {
    auto token = std::make_unique<Token>();
    Token *const key = token.get();
    const std::lock_guard<std::mutex> held(lock);
    to.emplace(key, std::move(token));
    return key;
  }

  uint64_t alloc(uint64_t size, uint64_t align, uint32_t kind, uint32_t flags)
  {
    if (kind == SM_MEMORY_HOST_PINNED || kind == SM_MEMORY_MANAGED || (flags & SM_ALLOC_SHAREABLE))
      throw Failure(SM_UNIMPLEMENTED, "only device memory, and none to share");
    if (kind != SM_MEMORY_DEVICE)
      invalid("this kind of memory cannot be allocated", kind);
    if (flags & ~static_cast<uint32_t>(SM_ALLOC_RDMA))
      invalid("alloc flags are unknown", flags);
    if (align & (align - 1))
      invalid("the alignment is not a power of two", align);
    if (size == 0)
      return 0;
    const uint64_t least = flags & SM_ALLOC_RDMA ? SM_RDMA_ALIGN_BYTES : granularity;
    align = align < least ? least : align;
    /* A size that wraps when it is rounded up is more than there is, too. */
    const uint64_t rounded = (size + align - 1) & ~(align - 1);
    Block block{nullptr, size, ++last_id};
    if (rounded >= size)
      block.memory.reset(std::aligned_alloc(align, rounded));
    if (block.memory == nullptr) {
      Failure failure(SM_RESOURCE_EXHAUSTED, "device 0 has no ", size,
                      " bytes; free some or ask for less");
      failure.flags = SM_ERROR_OOM;
      failure.native = ENOMEM;
      throw failure;
    }
    const auto ptr = reinterpret_cast<uintptr_t>(block.memory.get());
    const std::lock_guard<std::mutex> held(lock);
    blocks.emplace(ptr, std::move(block));
    return ptr;
  }

  SmPtrAttr attributes(uint64_t ptr)
  {
    SmPtrAttr attr = {};
    attr.hdr = SM_HDR(SmPtrAttr);
    attr.kind = SM_MEMORY_UNKNOWN;
    attr.device = -1;
    const std::lock_guard<std::mutex> held(lock);
    auto after = blocks.upper_bound(ptr);
    if (after == blocks.begin())
      return attr;
    const auto &[base, block] = *--after;
    if (ptr - base >= block.size)
      return attr;
    attr.kind = SM_MEMORY_DEVICE;
    attr.device = 0;
    attr.base = base;
    attr.size = block.size;
    attr.alloc_id = block.id;
    attr.flags = SM_PTR_HOST_ACCESSIBLE;
    return attr;
  }
};

/* The body of a slot with its instance checked. */
template <class Body> int32_t slot(SmBackend *s, Phase phase, SmError *err, Body body) noexcept
{
  auto *const instance = reinterpret_cast<Instance *>(s);
  return guard(err, instance == nullptr ? nullptr : &instance->poisoned, [&] {
    not_null(instance).admit(phase);
    body(*instance);
  });
}

/* ---- the slots ------------------------------------------------------------------------------- */

int32_t probe(uint32_t *n_devices, uint32_t *score, SmError *err) noexcept
{
  return guard(err, nullptr, [&] {
    not_null(n_devices) = 1;
    not_null(score) = 1;
  });
}

int32_t open(const SmHostApi *, const SmOpenArgs *args, SmBackend **out, SmError *err) noexcept
{
  return guard(err, nullptr, [&] {
    not_null(out);
    if (args != nullptr && args->hdr.struct_size >= sizeof *args && args->flags != 0)
      invalid("open flags are unknown", args->flags);
    *out = reinterpret_cast<SmBackend *>(new Instance);
    log_info("opened");
  });
}

int32_t quiesce(SmBackend *s, SmError *err) noexcept
{
  return slot(s, Phase::ending, err, [](Instance &own) { own.quiesced = true; });
}

int32_t close(SmBackend *s, SmError *err) noexcept
{
  auto *const instance = reinterpret_cast<Instance *>(s);
  return guard(err, nullptr, [&] {
    /* In a forked child the instance is left alone; a poisoned one ends all the same. */
    if (not_null(instance).pid != getpid())
      instance->admit(Phase::ending);
    delete instance;
  });
}

int32_t device_count(SmBackend *s, uint32_t *n, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &) { not_null(n) = 1; });
}

int32_t device_info(SmBackend *s, uint32_t dev, SmDeviceInfo *out, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_device(dev);
    SmDeviceInfo info = {};
    info.hdr = SM_HDR(SmDeviceInfo);
    info.physical_ordinal = -1;
    info.numa_node = -1;
    std::strcpy(info.name, "Example in C++");
    std::strcpy(info.torch_device_type, "cpu");
    info.dlpack_type = SM_DLPACK_CPU;
    info.total_mem = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES))
                     * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    info.page_granularity = granularity;
    info.integrated = 1;
    info.rdma_write_ordering = SM_RDMA_ORDERING_ALL_DEVICES;
    put(out, info);
  });
}

int32_t capabilities(SmBackend *s, uint32_t dev, uint64_t *bits, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_device(dev);
    not_null(bits) = SM_CAP_UVA | SM_CAP_CONCURRENT_CONTEXTS | SM_CAP_FORK_SAFE_PROBE;
  });
}

int32_t set_current_device(SmBackend *s, uint32_t dev, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_device(dev);
    current_device = static_cast<int32_t>(dev);
  });
}

int32_t get_current_device(SmBackend *s, int32_t *dev, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &) { not_null(dev) = current_device; });
}

int32_t device_sync(SmBackend *s, uint32_t dev, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) { own.check_device(dev); });
}

int32_t alloc(SmBackend *s, uint32_t dev, uint64_t size, uint64_t align, uint32_t kind,
              uint32_t flags, uint64_t *ptr, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_device(dev);
    not_null(ptr);
    *ptr = own.alloc(size, align, kind, flags);
  });
}

int32_t free(SmBackend *s, uint32_t dev, uint64_t ptr, SmError *err) noexcept
{
  return slot(s, Phase::ending, err, [&](Instance &own) {
    own.check_device(dev);
    if (ptr == 0)
      return;
    const std::lock_guard<std::mutex> held(own.lock);
    if (own.blocks.erase(ptr) == 0)
      invalid("free: not the first address of a live allocation", ptr);
  });
}

int32_t pointer_attributes(SmBackend *s, uint64_t ptr, SmPtrAttr *out, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) { put(out, own.attributes(ptr)); });
}

int32_t stream_create(SmBackend *s, uint32_t dev, int32_t, uint32_t flags, uint64_t *stream,
                      SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_device(dev);
    not_null(stream);
    if (flags & ~static_cast<uint32_t>(SM_STREAM_NON_BLOCKING))
      invalid("stream flags are unknown", flags);
    *stream = reinterpret_cast<uintptr_t>(own.add(own.streams));
  });
}

int32_t stream_destroy(SmBackend *s, uint32_t dev, uint64_t stream, SmError *err) noexcept
{
  return slot(s, Phase::ending, err, [&](Instance &own) {
    own.check_device(dev);
    const std::lock_guard<std::mutex> held(own.lock);
    if (own.streams.erase(reinterpret_cast<Token *>(stream)) == 0)
      invalid("stream_destroy: no stream that was created", stream);
  });
}

int32_t stream_sync(SmBackend *s, uint32_t dev, uint64_t stream, uint64_t, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) { own.check_stream(dev, stream); });
}

int32_t stream_query(SmBackend *s, uint32_t dev, uint64_t stream, uint32_t *done,
                     SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_stream(dev, stream);
    not_null(done) = 1;
  });
}

int32_t stream_wait_event(SmBackend *s, uint32_t dev, uint64_t stream, SmEvent *event,
                          SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_stream(dev, stream);
    own.check_event(event);
  });
}

int32_t memcpy_async(SmBackend *s, uint64_t dst, uint64_t src, uint64_t size, uint32_t dir,
                     uint32_t dst_dev, uint32_t src_dev, uint32_t stream_dev, uint64_t stream,
                     SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_stream(stream_dev, stream);
    if (dir > SM_COPY_P2P)
      invalid("this direction is unknown", dir);
    /* The device argument of a host side is not looked at. */
    if (dir == SM_COPY_H2D || dir == SM_COPY_D2D || dir == SM_COPY_P2P)
      own.check_device(dst_dev);
    if (dir == SM_COPY_D2H || dir == SM_COPY_D2D || dir == SM_COPY_P2P)
      own.check_device(src_dev);
    if (size == 0)
      return;
    if (dst == 0 || src == 0)
      invalid("a copy with a null address", size);
    std::memcpy(reinterpret_cast<void *>(dst), reinterpret_cast<const void *>(src), size);
  });
}

int32_t memset_async(SmBackend *s, uint64_t dst, uint32_t value, uint32_t width, uint64_t size,
                     uint32_t stream_dev, uint64_t stream, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_stream(stream_dev, stream);
    if (width != 1 && width != 2 && width != 4)
      invalid("the width is not 1, 2 or 4", width);
    if (dst % width != 0 || size % width != 0)
      invalid("address or size is not a multiple of the width", dst);
    if (size != 0 && dst == 0)
      invalid("a fill of address 0", size);
    auto *const bytes = reinterpret_cast<unsigned char *>(dst);
    for (uint64_t at = 0; at < size; at++)
      bytes[at] = static_cast<unsigned char>(value >> (8 * (at % width)));
  });
}

int32_t event_create(SmBackend *s, uint32_t dev, uint32_t flags, SmEvent **out,
                     SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_device(dev);
    not_null(out);
    constexpr uint32_t known = SM_EVENT_TIMING | SM_EVENT_IPC | SM_EVENT_BLOCKING
                               | SM_EVENT_MEMSYNC;
    if (flags & ~known)
      invalid("event flags are unknown", flags);
    if (flags & (SM_EVENT_TIMING | SM_EVENT_IPC))
      throw Failure(SM_UNIMPLEMENTED, "events have no timing and stay in a process");
    *out = reinterpret_cast<SmEvent *>(own.add(own.events));
  });
}

int32_t event_destroy(SmBackend *s, SmEvent *event, SmError *err) noexcept
{
  return slot(s, Phase::ending, err, [&](Instance &own) {
    if (event == nullptr)
      return;
    const std::lock_guard<std::mutex> held(own.lock);
    if (own.events.erase(reinterpret_cast<Token *>(event)) == 0)
      invalid("event_destroy: no live event", reinterpret_cast<uintptr_t>(event));
  });
}

int32_t event_record(SmBackend *s, SmEvent *event, uint32_t dev, uint64_t stream,
                     SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_stream(dev, stream);
    own.check_event(event);
  });
}

/* A mark in synchronous work is always reached. */
int32_t event_query(SmBackend *s, SmEvent *event, uint32_t *state, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_event(event);
    not_null(state) = SM_EVENT_DONE;
  });
}

int32_t event_sync(SmBackend *s, SmEvent *event, uint64_t, uint32_t wait, SmError *err) noexcept
{
  return slot(s, Phase::open, err, [&](Instance &own) {
    own.check_event(event);
    if (wait > SM_WAIT_BLOCK)
      invalid("this wait mode is unknown", wait);
  });
}

int32_t last_error(SmBackend *, SmError *err) noexcept
{
  copy_failure(err, last_failure);
  return last_failure.code;
}

/* ---- the table ------------------------------------------------------------------------------- */

const SmPluginInfo plugin_info = { SM_HDR(SmPluginInfo), SM_STR(NAME), SM_STR(VERSION),
                                   SM_STR("StepMesh"), SM_STR("") };

/* Made by the compiler, so that no code runs when the library is loaded. */
constexpr SmBackendApi make_api()
{
  SmBackendApi api = {};
  api.hdr = SM_HDR(SmBackendApi);
  api.info = &plugin_info;
  api.probe = probe;
  api.open = open;
  api.quiesce = quiesce;
  api.close = close;
  api.device_count = device_count;
  api.device_info = device_info;
  api.capabilities = capabilities;
  api.set_current_device = set_current_device;
  api.get_current_device = get_current_device;
  api.device_sync = device_sync;
  api.alloc = alloc;
  api.free = free;
  api.pointer_attributes = pointer_attributes;
  api.stream_create = stream_create;
  api.stream_destroy = stream_destroy;
  api.stream_sync = stream_sync;
  api.stream_query = stream_query;
  api.stream_wait_event = stream_wait_event;
  api.memcpy_async = memcpy_async;
  api.memset_async = memset_async;
  api.event_create = event_create;
  api.event_destroy = event_destroy;
  api.event_record = event_record;
  api.event_query = event_query;
  api.event_sync = event_sync;
  api.last_error = last_error;
  return api;
}

constexpr SmBackendApi table = make_api();

} // namespace

const SmBackendApi *stepmesh_backend_query_v1(const SmHostApi *h, SmError *err)
{
  if (h == nullptr || h->hdr.abi_major != SM_ABI_MAJOR) {
    report(err, Failure(SM_FAILED_PRECONDITION, "this host has another ABI"));
    return nullptr;
  }
  /* A host may be older or newer than this plugin: read what both know. */
  SmHostApi known = {};
  std::memcpy(&known, h, h->hdr.struct_size < sizeof known ? h->hdr.struct_size : sizeof known);
  host = known;
  return &table;
}
