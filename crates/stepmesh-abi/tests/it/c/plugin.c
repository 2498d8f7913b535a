/* A plugin in C that does nothing: checks that the header is enough to write one. */
#include "stepmesh_backend.h"

#ifdef __cplusplus
#define CHECK(condition) static_assert(condition, #condition)
#else
#define CHECK(condition) _Static_assert(condition, #condition)
#endif

CHECK(sizeof(SmHdr) == 8);
CHECK(sizeof(SmStr) == 16);
CHECK(sizeof(SmError) == 256);
CHECK(sizeof(SmPtrAttr) == 56);
CHECK(sizeof(SmDeviceInfo) == 232);
CHECK(sizeof(SmHostApi) == SM_HOST_API_LEN_V1_0);
CHECK(sizeof(SmBackendApi) == SM_BACKEND_API_LEN_V1_0);
CHECK(sizeof(SmIpcHandle) == 104);
CHECK(sizeof(SmIpcV1) == 32);

SM_BACKEND_NOTE("cdemo", "GPU", "1.2.3", SM_KIND_GPU, SM_NOTE_THREADS, -7);

static const SmPluginInfo info = { SM_HDR(SmPluginInfo), SM_STR("cdemo"), SM_STR("1.2.3"),
                                   SM_STR("the tests"), SM_STR("") };
static SmBackendApi api;

const SmBackendApi *stepmesh_backend_query_v1(const SmHostApi *host, SmError *err)
{
  (void)err;
  if (host == 0 || host->hdr.abi_major != SM_ABI_MAJOR)
    return 0;
  api.info = &info;
  return &api;
}
