/*
 * stepmesh.compute.v1 in C: a device that adds and multiplies f32, and nothing else. A part of
 * example.c, which includes it when it is built with -DEXAMPLE_COMPUTE.
 *
 * A graph comes as flat arrays. `compile` trusts none of it: every count is bounded before anything
 * is read, every index is checked, types and shapes are compared with what the operations give. What
 * it has never heard of it names, so that the host can fall back and say why.
 */

/* One node: a parameter's number, or two earlier nodes to add or to multiply. */
struct step {
  uint32_t op, first, second;
  uint64_t count, at; /* elements, and where they are among those of all nodes */
};

struct SmExecutable {
  SmBackend *owner;
  struct SmExecutable *next;
  uint64_t count; /* elements of all nodes */
  uint32_t n_steps, n_params, n_results;
  struct step *steps;
  uint32_t *results; /* nodes */
  SmTensorInfo *params_info, *results_info;
};

/* Executables that are alive, of all instances. */
static struct SmExecutable *executables;
static pthread_mutex_t executables_lock = PTHREAD_MUTEX_INITIALIZER;

static int is_supported(uint32_t op, uint32_t dtype)
{
  return dtype == SM_DTYPE_F32 && (op == SM_OP_PARAMETER || op == SM_OP_ADD || op == SM_OP_MUL);
}

static int32_t ex_supported_ops(SmBackend *s, uint32_t dev, uint32_t op, uint32_t dtype,
                                uint32_t *supported, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  NOT_NULL(supported);
  *supported = is_supported(op, dtype) ? 1 : 0;
  return SM_OK;
}

static void release_executable(struct SmExecutable *exe)
{
  free(exe->steps);
  free(exe->results);
  free(exe->params_info);
  free(exe->results_info);
  free(exe);
}

/* ---- compile: from claims to an executable ---------------------------------------------------- */

/* Where the user's program is, for messages; at most 60 bytes of it. */
static int location(const SmNode *node, const char **text)
{
  int has = node->location.ptr != NULL && node->location.len > 0;
  *text = has ? node->location.ptr : "";
  return has ? (int)(node->location.len < 60 ? node->location.len : 60) : 0;
}

static int32_t bad_node(SmError *err, uint32_t idx, const char *what, uint64_t value)
{
  return fail(err, SM_INVALID_ARGUMENT, 0, 0, NAME ": node %u: %s (%#llx)", idx, what,
              (unsigned long long)value);
}

static int32_t check_shape(const SmNode *node, uint32_t idx, uint64_t *elements, SmError *err)
{
  *elements = 1;
  if (node->rank > SM_COMPUTE_RANK_MAX)
    return bad_node(err, idx, "its rank is too great", node->rank);
  /* Extents of 0 are left out, so that one does not hide that the others overflow. */
  uint64_t count = 1;
  for (uint32_t dim = 0; dim < node->rank; dim++)
    if (node->dims[dim] != 0 && __builtin_mul_overflow(count, node->dims[dim], &count))
      return bad_node(err, idx, "its extents overflow", node->dims[dim]);
  for (uint32_t dim = 0; dim < node->rank; dim++)
    *elements *= node->dims[dim];
  return count > (uint64_t)1 << 60 ? bad_node(err, idx, "it is too large", count) : SM_OK;
}

static const SmNode *node_at(const SmGraph *graph, uint32_t idx)
{
  return (const SmNode *)((const char *)graph->nodes
                          + (uint64_t)idx * graph->nodes->hdr.struct_size);
}

static int32_t check_node(const SmGraph *graph, uint32_t idx, uint64_t *elements, SmError *err)
{
  const SmNode *node = node_at(graph, idx);
  if (!is_supported(node->op, node->dtype)) {
    const char *text;
    int len = location(node, &text);
    return fail(err, SM_UNIMPLEMENTED, 0, 0,
                NAME ": has no op %u for type %u, which node %u needs %.*s", node->op, node->dtype,
                idx, len, text);
  }
  TRY(check_shape(node, idx, elements, err));
  if (node->n_attrs != 0) {
    if (node->n_attrs > SM_COMPUTE_OPERANDS_MAX || node->attrs == NULL)
      return bad_node(err, idx, "its attributes are null or too many", node->n_attrs);
    return fail(err, SM_UNIMPLEMENTED, 0, 0, NAME ": op %u has no attribute %u", node->op,
                node->attrs[0].key);
  }
  uint32_t wanted = node->op == SM_OP_PARAMETER ? 0 : 2;
  if (node->n_operands != wanted || (wanted > 0 && node->operands == NULL))
    return bad_node(err, idx, "it has not as many operands as its op", node->n_operands);
  for (uint32_t n = 0; n < wanted; n++) {
    if (node->operands[n].node >= idx || node->operands[n].output != 0)
      return bad_node(err, idx, "an operand is no earlier value", node->operands[n].node);
    /* The one type was looked at; both operations give a value that is like its operands. */
    const SmNode *operand = node_at(graph, node->operands[n].node);
    if (node->rank != operand->rank
        || memcmp(node->dims, operand->dims, node->rank * sizeof node->dims[0]) != 0)
      return bad_node(err, idx, "its shape is not that of its operands", node->rank);
  }
  return SM_OK;
}

static int32_t check_graph(const SmGraph *graph, SmError *err)
{
  if (graph == NULL || graph->hdr.struct_size < sizeof *graph)
    return invalid(err, "the graph is null or too short", 0);
  if (graph->n_nodes == 0 || graph->n_nodes > SM_COMPUTE_NODES_MAX || graph->nodes == NULL)
    return invalid(err, "the nodes are none, too many or null", graph->n_nodes);
  if (graph->n_params > SM_COMPUTE_OPERANDS_MAX || (graph->n_params > 0 && graph->params == NULL))
    return invalid(err, "the parameters are too many or null", graph->n_params);
  if (graph->n_results == 0 || graph->n_results > SM_COMPUTE_OPERANDS_MAX || graph->results == NULL)
    return invalid(err, "the results are none, too many or null", graph->n_results);
  if (graph->n_aliases > SM_COMPUTE_OPERANDS_MAX
      || (graph->n_aliases > 0 && graph->aliases == NULL))
    return invalid(err, "the donations are too many or null", graph->n_aliases);
  /* The first node's size is the step of the array, all must have the same. */
  uint32_t step = graph->nodes->hdr.struct_size;
  if (step < sizeof(SmNode) || step % 8 != 0)
    return invalid(err, "a node says it is too short", step);
  return SM_OK;
}

static int32_t read_nodes(const SmGraph *graph, struct SmExecutable *exe, SmError *err)
{
  const SmNode *first = node_at(graph, 0);
  for (uint32_t idx = 0; idx < graph->n_nodes; idx++) {
    const SmNode *node = node_at(graph, idx);
    if (node->hdr.struct_size != first->hdr.struct_size)
      return bad_node(err, idx, "it is not as long as the first", node->hdr.struct_size);
    struct step *step = &exe->steps[idx];
    TRY(check_node(graph, idx, &step->count, err));
    step->at = exe->count;
    if (__builtin_add_overflow(exe->count, step->count, &exe->count)
        || exe->count > SIZE_MAX / sizeof(float))
      return bad_node(err, idx, "all values together are too large", step->count);
    step->op = node->op;
    /* Until the list of parameters was read, no parameter has a number. */
    step->first = node->op == SM_OP_PARAMETER ? UINT32_MAX : node->operands[0].node;
    step->second = node->op == SM_OP_PARAMETER ? 0 : node->operands[1].node;
  }
  return SM_OK;
}

static void describe(const SmNode *node, uint64_t count, SmTensorInfo *out)
{
  *out = (SmTensorInfo){ .hdr = SM_HDR(SmTensorInfo), .dtype = node->dtype, .rank = node->rank,
                         .len_bytes = count * sizeof(float), .alias = -1 };
  memcpy(out->dims, node->dims, node->rank * sizeof node->dims[0]);
}

static int32_t read_ends(const SmGraph *graph, struct SmExecutable *exe, SmError *err)
{
  uint32_t n_parameters = 0;
  for (uint32_t idx = 0; idx < graph->n_nodes; idx++)
    n_parameters += exe->steps[idx].op == SM_OP_PARAMETER;
  for (uint32_t n = 0; n < graph->n_params; n++) {
    uint32_t idx = graph->params[n];
    if (idx >= graph->n_nodes || exe->steps[idx].op != SM_OP_PARAMETER
        || exe->steps[idx].first != UINT32_MAX)
      return invalid(err, "a parameter is no such node, or twice", idx);
    exe->steps[idx].first = n;
    describe(node_at(graph, idx), exe->steps[idx].count, &exe->params_info[n]);
  }
  if (n_parameters != graph->n_params)
    return invalid(err, "a parameter is not in the list", n_parameters);
  for (uint32_t n = 0; n < graph->n_results; n++) {
    SmValue value = graph->results[n];
    if (value.node >= graph->n_nodes || value.output != 0)
      return invalid(err, "a result is no value", value.node);
    exe->results[n] = value.node;
    describe(node_at(graph, value.node), exe->steps[value.node].count, &exe->results_info[n]);
  }
  for (uint32_t n = 0; n < graph->n_aliases; n++) {
    SmAlias alias = graph->aliases[n];
    if (alias.param >= graph->n_params || alias.result >= graph->n_results
        || exe->params_info[alias.param].alias >= 0 || exe->results_info[alias.result].alias >= 0)
      return invalid(err, "a donation is out of range, or twice", alias.param);
    exe->params_info[alias.param].alias = (int32_t)alias.result;
    exe->results_info[alias.result].alias = (int32_t)alias.param;
  }
  return SM_OK;
}

static int32_t ex_compile(SmBackend *s, uint32_t dev, const SmGraph *graph,
                          const SmCompileOptions *options, SmExecutable **out, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  NOT_NULL(out);
  TRY(check_graph(graph, err));
  uint32_t known = SM_COMPILE_DETERMINISTIC | SM_COMPILE_ALLOW_TF32;
  if (options != NULL
      && (options->hdr.struct_size < sizeof *options || (options->flags & ~known) != 0))
    return invalid(err, "an option is unknown", options->flags);
  struct SmExecutable *exe = calloc(1, sizeof *exe);
  if (exe == NULL)
    return fail(err, SM_RESOURCE_EXHAUSTED, SM_ERROR_OOM, errno, NAME ": no memory");
  exe->owner = s;
  exe->n_steps = graph->n_nodes;
  exe->n_params = graph->n_params;
  exe->n_results = graph->n_results;
  exe->steps = calloc(exe->n_steps, sizeof *exe->steps);
  exe->results = calloc(exe->n_results, sizeof *exe->results);
  exe->params_info = calloc(exe->n_params + 1, sizeof *exe->params_info);
  exe->results_info = calloc(exe->n_results, sizeof *exe->results_info);
  int32_t status = SM_OK;
  if (exe->steps == NULL || exe->results == NULL || exe->params_info == NULL
      || exe->results_info == NULL)
    status = fail(err, SM_RESOURCE_EXHAUSTED, SM_ERROR_OOM, errno, NAME ": no memory");
  if (status == SM_OK)
    status = read_nodes(graph, exe, err);
  if (status == SM_OK)
    status = read_ends(graph, exe, err);
  if (status != SM_OK) {
    release_executable(exe);
    return status;
  }
  pthread_mutex_lock(&executables_lock);
  exe->next = executables;
  executables = exe;
  pthread_mutex_unlock(&executables_lock);
  *out = exe;
  return SM_OK;
}

/* ---- executables ------------------------------------------------------------------------------ */

static int32_t check_executable(SmBackend *s, const SmExecutable *exe, SmError *err)
{
  pthread_mutex_lock(&executables_lock);
  struct SmExecutable *live = executables;
  while (live != NULL && (live != exe || live->owner != s))
    live = live->next;
  pthread_mutex_unlock(&executables_lock);
  return live != NULL ? SM_OK : invalid(err, "this executable does not exist", (uintptr_t)exe);
}

static int32_t check_addresses(const SmTensorInfo *infos, const uint64_t *list, uint32_t count,
                               uint32_t wanted, SmError *err)
{
  if (count != wanted || (count > 0 && list == NULL))
    return invalid(err, "the addresses are null, or not as many as are wanted", count);
  for (uint32_t n = 0; n < count; n++)
    if (infos[n].len_bytes > 0 && (list[n] == 0 || list[n] % sizeof(float) != 0))
      return invalid(err, "an address is null or askew", list[n]);
  return SM_OK;
}

/* Values are computed apart and then copied, so that results may be where arguments are. */
static int32_t ex_execute(SmBackend *s, SmExecutable *exe, const uint64_t *args, uint32_t n_args,
                          const uint64_t *outs, uint32_t n_outs, uint32_t stream_dev,
                          uint64_t stream, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_executable(s, exe, err));
  TRY(check_stream(s, stream_dev, stream, err));
  TRY(check_addresses(exe->params_info, args, n_args, exe->n_params, err));
  TRY(check_addresses(exe->results_info, outs, n_outs, exe->n_results, err));
  if (exe->count == 0)
    return SM_OK;
  float *values = calloc(exe->count, sizeof *values);
  if (values == NULL)
    return fail(err, SM_RESOURCE_EXHAUSTED, SM_ERROR_OOM, errno, NAME ": no memory for values");
  for (uint32_t idx = 0; idx < exe->n_steps; idx++) {
    const struct step *step = &exe->steps[idx];
    float *to = values + step->at;
    if (step->count == 0)
      continue;
    if (step->op == SM_OP_PARAMETER) {
      memcpy(to, (const void *)(uintptr_t)args[step->first], step->count * sizeof *to);
      continue;
    }
    const float *a = values + exe->steps[step->first].at;
    const float *b = values + exe->steps[step->second].at;
    for (uint64_t n = 0; n < step->count; n++)
      to[n] = step->op == SM_OP_ADD ? a[n] + b[n] : a[n] * b[n];
  }
  for (uint32_t n = 0; n < exe->n_results; n++) {
    const struct step *step = &exe->steps[exe->results[n]];
    if (step->count > 0)
      memcpy((void *)(uintptr_t)outs[n], values + step->at, step->count * sizeof *values);
  }
  free(values);
  return SM_OK;
}

static int32_t ex_executable_info(SmBackend *s, SmExecutable *exe, SmExecutableInfo *out,
                                  SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_executable(s, exe, err));
  SmExecutableInfo info = { .hdr = SM_HDR(SmExecutableInfo), .params = exe->params_info,
                            .results = exe->results_info, .n_params = exe->n_params,
                            .n_results = exe->n_results };
  return put(out, &info, sizeof info, err);
}

static int32_t ex_executable_text(SmBackend *s, SmExecutable *exe, uint32_t form, char *buf,
                                  uint64_t cap, uint64_t *len, SmError *err)
{
  (void)buf;
  (void)cap;
  TRY(admit(s, OPEN, err));
  TRY(check_executable(s, exe, err));
  NOT_NULL(len);
  if (form != SM_COMPUTE_TEXT_PLAN && form != SM_COMPUTE_TEXT_SOURCE)
    return invalid(err, "text of this form is unknown", form);
  return fail(err, SM_UNIMPLEMENTED, 0, 0, NAME ": there is no text of an executable");
}

static int32_t ex_serialize(SmBackend *s, SmExecutable *exe, uint8_t *buf, uint64_t cap,
                            uint64_t *len, SmError *err)
{
  (void)buf;
  (void)cap;
  TRY(admit(s, OPEN, err));
  TRY(check_executable(s, exe, err));
  NOT_NULL(len);
  return fail(err, SM_UNIMPLEMENTED, 0, 0, NAME ": compiling is cheap, so nothing is serialised");
}

static int32_t ex_deserialize(SmBackend *s, uint32_t dev, const uint8_t *bytes, uint64_t len,
                              SmExecutable **out, SmError *err)
{
  (void)bytes;
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  NOT_NULL(out);
  return fail(err, SM_DATA_LOSS, 0, 0, NAME ": %llu bytes are no executable of this plugin",
              (unsigned long long)len);
}

static int32_t ex_fingerprint(SmBackend *s, uint32_t dev, SmFingerprint *out, SmError *err)
{
  TRY(admit(s, OPEN, err));
  TRY(check_device(dev, err));
  SmFingerprint print = { .hdr = SM_HDR(SmFingerprint), .bytes = NAME " " VERSION };
  return put(out, &print, sizeof print, err);
}

static int32_t ex_executable_destroy(SmBackend *s, SmExecutable *exe, SmError *err)
{
  TRY(admit(s, ENDING, err));
  if (exe == NULL)
    return SM_OK;
  pthread_mutex_lock(&executables_lock);
  struct SmExecutable **at = &executables;
  while (*at != NULL && (*at != exe || (*at)->owner != s))
    at = &(*at)->next;
  int found = *at != NULL;
  if (found)
    *at = exe->next;
  pthread_mutex_unlock(&executables_lock);
  if (!found)
    return invalid(err, "executable_destroy: no live executable", (uintptr_t)exe);
  release_executable(exe);
  return SM_OK;
}

/* Ends what is left of an instance that is closed. */
static void release_executables(SmBackend *s)
{
  pthread_mutex_lock(&executables_lock);
  struct SmExecutable **at = &executables;
  while (*at != NULL) {
    struct SmExecutable *exe = *at;
    if (exe->owner == s) {
      *at = exe->next;
      release_executable(exe);
    } else {
      at = &exe->next;
    }
  }
  pthread_mutex_unlock(&executables_lock);
}

static const SmComputeV1 compute = {
  .hdr = SM_HDR(SmComputeV1),
  .supported_ops = ex_supported_ops,
  .compile = ex_compile,
  .execute = ex_execute,
  .executable_info = ex_executable_info,
  .executable_text = ex_executable_text,
  .serialize = ex_serialize,
  .deserialize = ex_deserialize,
  .fingerprint = ex_fingerprint,
  .executable_destroy = ex_executable_destroy,
};

static int32_t ex_get_extension(SmBackend *s, const char *name, uint32_t name_len,
                                uint32_t min_version, const void **table, uint32_t *version,
                                SmError *err)
{
  TRY(admit(s, OPEN, err));
  if (name == NULL)
    return invalid(err, "the name is null", 0);
  NOT_NULL(table);
  NOT_NULL(version);
  static const char known[] = SM_EXTENSION_COMPUTE_V1;
  if (name_len != sizeof known - 1 || memcmp(name, known, name_len) != 0 || min_version > 1)
    return fail(err, SM_NOT_FOUND, 0, 0, NAME ": there is no extension %.*s of version %u",
                (int)(name_len < 60 ? name_len : 60), name, min_version);
  *table = &compute;
  *version = 1;
  return SM_OK;
}
